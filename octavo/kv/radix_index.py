"""`RadixIndex`: a path-compressed tree of blocks: a node is a run of them, and tokens are compared a run at a time."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.errors import InvariantError
from octavo.kv.heads import TOKEN_BYTES, Heads, Leaf, add, common_bytes, covers, leaves, longest, remove
from octavo.kv.prefix_index import Cursor, IndexMatch, Insertion, PrefixIndex, Tokens


class Node:
    """Full blocks that follow each other without anything else between them.

    parent: the node before (None: a root, whose run is empty).  begin: position of the first token.
    run: the blocks' tokens, as bytes.  blocks: their ids (None: a gap).  gaps: how many of these there are.
    first: the first block as the parent's heads know it (in a root: its key's digest).
    children: nodes after the last block, by the bytes of their first (None: no nodes).  heads: what can be found after the last block.
    is_open: whether blocks may be appended.  No longer when some were cut off, so that a position in a node has one content for ever.
    is_alive: whether the node is in the tree.

    The cursor of a chain is the node that holds its last block; with the chain's length it says where.  When chains part inside a
    node, the front goes to a new node: the cost is that of the tokens that led there, and cursors further on stay valid.
    """

    __slots__ = ("begin", "blocks", "children", "first", "gaps", "heads", "is_alive", "is_open", "parent", "run")

    def __init__(self, parent: Node | None, begin: int, first: Leaf) -> None:
        self.parent = parent
        self.begin = begin
        self.first = first
        self.run = bytearray()
        self.blocks: list[int | None] = []
        self.gaps = 0
        self.children: dict[bytes, Node] | None = None
        self.heads: Heads = None
        self.is_open = self.is_alive = parent is not None


class Tail(Leaf):
    """An open block: the tokens that can be found in it, and the node whose last block they continue."""

    __slots__ = ("node",)

    def __init__(self, node: Node, tokens: bytes, block: int) -> None:
        self.node = node
        self.tokens = tokens
        self.block = block


class RadixIndex(PrefixIndex):
    """A radix tree whose letters are blocks (Zheng et al., SGLang, arXiv:2312.07104, section 3): runs are stored and compared as one.

    Nodes are not joined again when what made chains part is gone: cursors would go stale, to save one look-up per node.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._roots: dict[bytes, Node] = {}
        self._found_in: dict[int, Node | Tail] = {}  # block -> where it can be found

    def root(self, digest: bytes) -> Cursor:
        return self._roots.get(digest) or Node(None, 0, Leaf(digest, None))

    def match(self, root: Cursor, tokens: Tokens, limit: int, skip: int = 0) -> IndexMatch:
        node: Node = self._roots.get(root.first.tokens) or root
        end, width = max(0, min(limit, len(tokens))), self._block_bytes
        full = end // self.block_size
        data = tokens[:end].tobytes()
        blocks: list[int | None] = []
        behind = 0  # how many of `blocks` stand in `node`
        while len(blocks) < full and node.children is not None:
            at = len(blocks) * width
            child = node.children.get(data[at : at + width])
            if child is None:
                break
            same = self._same(child, data, at, full)
            if child.gaps:
                same = _first_gap(child.blocks, max(0, skip - len(blocks)), same)
                if not same:
                    break
            blocks += child.blocks if same == len(child.blocks) else child.blocks[:same]
            node, behind = child, same
            if same < len(child.blocks):
                break
        if len(blocks) < skip:
            return IndexMatch((), root)
        at = len(blocks) * width
        found: tuple[int, ...] = tuple(blocks[skip:])  # type: ignore[arg-type]  # gaps end the walk, or are skipped
        query = data[at : at + width]
        if behind < len(node.blocks):
            common = common_bytes(query, node.run[behind * width : (behind + 1) * width]) // TOKEN_BYTES
            if not common or node.blocks[behind] is None:
                return IndexMatch(found, node)
            return IndexMatch(found, node, node.blocks[behind], common, self.block_size)
        head = longest(node.heads, query)
        if head is None:
            return IndexMatch(found, node)
        leaf, common = head
        return IndexMatch(found, node, leaf.block, common, len(leaf.tokens) // TOKEN_BYTES)

    def insert(self, cursor: Cursor, tokens: Tokens, start: int, block: int) -> Insertion:
        node: Node = cursor
        chunk = tokens[start : start + self.block_size].tobytes()
        before = (start - node.begin) // self.block_size
        if not (node.is_alive and (node.parent is not None) <= before <= len(node.blocks)):
            node, before = self._reach(node, tokens, start)
        own = self._found_in.get(block)
        if before == len(node.blocks) and node.is_open and node.children is None and node.heads is own:
            # Nothing else continues the chain: the usual case.
            node.heads = None
            node.run += chunk
            node.blocks.append(block)
            self._found_in[block] = node
            return Insertion(node, True)
        there = self._there(node, before, chunk)
        if there is not None and (other := there[0].blocks[there[1]]) is not None:
            if other != block:
                self.forget(block)
            return Insertion(there[0], other == block)
        if isinstance(own, Tail) and own.node is node and before == len(node.blocks):
            node.heads = remove(node.heads, own)
        elif own is not None:
            self.forget(block)
            node, before = self._reach(node, tokens, start)
            there = self._there(node, before, chunk)
        if there is None:
            node = self._append(node, before, chunk, [block])
        else:
            node, i = there
            node.blocks[i] = block
            node.gaps -= 1
            if i == 0:
                node.first.block = block
                parent: Node = node.parent  # type: ignore[assignment]  # a root holds no blocks
                parent.heads = add(parent.heads, node.first)
        self._found_in[block] = node
        return Insertion(node, True)

    def insert_all(self, cursor: Cursor, tokens: Tokens, start: int, blocks: Sequence[int]) -> tuple[Cursor, list[int]]:
        if not blocks:
            return cursor, []
        size, rest = self.block_size, list(blocks[1:])
        node: Node
        node, findable = self.insert(cursor, tokens, start, blocks[0])
        ends_here = node.begin + len(node.blocks) * size == start + size
        if ends_here and node.is_open and node.children is None and node.heads is None and self._found_in.keys().isdisjoint(rest):
            node.run += tokens[start + size : start + size * len(blocks)].tobytes()
            node.blocks += rest
            self._found_in.update(dict.fromkeys(rest, node))
            return node, [] if findable else [blocks[0]]
        cursor, refused = super().insert_all(node, tokens, start + size, rest)
        return cursor, refused if findable else [blocks[0], *refused]

    def extend(self, cursor: Cursor, tokens: Tokens, start: int, fill: int, block: int) -> bool:
        node: Node = cursor
        head = tokens[start : start + fill].tobytes()
        before = (start - node.begin) // self.block_size
        if not (node.is_alive and (node.parent is not None) <= before <= len(node.blocks)):
            node, before = self._reach(node, tokens, start)
        own = self._found_in.get(block)
        if isinstance(own, Tail) and own.node is node and before == len(node.blocks):
            if own.tokens.startswith(head):
                return True
            if node.heads is own:
                own.tokens = head
                return True
            if covers(node.heads, head):
                return False
            rest = remove(node.heads, own)
            own.tokens = head
            node.heads = add(rest, own)
            return True
        if before < len(node.blocks):
            if node.blocks[before] is not None and node.run.startswith(head, before * self._block_bytes):
                return node.blocks[before] == block
        elif covers(node.heads, head):
            return isinstance(own, Node) and own.parent is node and own.first.block == block and own.run.startswith(head)
        if own is not None:
            self.forget(block)
            node, before = self._reach(node, tokens, start)
        if before < len(node.blocks):
            node = self._split(node, before)
        tail = self._found_in[block] = Tail(node, head, block)
        node.heads = add(node.heads, tail)
        return True

    def shorten(self, block: int, fill: int) -> None:
        own = self._found_in.get(block)
        if own is None or self.fill(block) <= fill:
            return
        if isinstance(own, Tail):
            node, leaf = own.node, own
            node.heads = remove(node.heads, own)
        else:
            i = _index(own.blocks, block)
            node = self._split(own, i) if i else own.parent  # type: ignore[assignment]
            leaf = own.first  # type: ignore[assignment]
            self._vacate(own, 0)
        head = leaf.tokens[: fill * TOKEN_BYTES]
        if head and not covers(node.heads, head):
            tail = self._found_in[block] = Tail(node, head, block)
            node.heads = add(node.heads, tail)
        else:
            del self._found_in[block]
        self._prune(node if isinstance(own, Tail) else own)

    def forget(self, block: int) -> None:
        own = self._found_in.pop(block, None)
        if isinstance(own, Tail):
            own.node.heads = remove(own.node.heads, own)
            self._prune(own.node)
        elif own is not None:
            self._vacate(own, _index(own.blocks, block))
            self._prune(own)

    def fill(self, block: int) -> int:
        own = self._found_in.get(block)
        if isinstance(own, Tail):
            return len(own.tokens) // TOKEN_BYTES
        return 0 if own is None else self.block_size

    def _same(self, node: Node, data: bytes, at: int, full: int) -> int:
        """How many blocks of `node` equal those from byte `at` of `data`, which has `full` blocks; the first is known to."""
        width, run = self._block_bytes, node.run
        low, high = 1, min(len(node.blocks), full - at // width)
        view = memoryview(data)
        if run.startswith(view[at : at + high * width]):
            return high
        while high - low > 1:  # blocks before `low` are equal, not all before `high` are
            middle = (low + high) // 2
            if run.startswith(view[at + low * width : at + middle * width], low * width):
                low = middle
            else:
                high = middle
        return low

    def _there(self, node: Node, before: int, chunk: bytes) -> tuple[Node, int] | None:
        """Node and index of the block, or gap, with these tokens after the first `before` blocks of `node`."""
        if before < len(node.blocks):
            return (node, before) if node.run.startswith(chunk, before * self._block_bytes) else None
        child = None if node.children is None else node.children.get(chunk)
        return None if child is None else (child, 0)

    def _reach(self, cursor: Node, tokens: Tokens, start: int) -> tuple[Node, int]:
        """The node in which `tokens[:start]` end, below the cursor's root, and how many of its blocks that takes.

        What is unknown becomes gaps.
        """
        root = cursor
        while root.parent is not None:
            root = root.parent
        node = self._roots.setdefault(root.first.tokens, root)
        node.is_alive = True
        data, full = tokens[:start].tobytes(), start // self.block_size
        done = before = 0
        while done < full:
            at = done * self._block_bytes
            child = None if node.children is None else node.children.get(data[at : at + self._block_bytes])
            if child is None:
                break
            node, before = child, self._same(child, data, at, full)
            done += before
            if before < len(node.blocks):
                break
        if done < full:
            node = self._append(node, before, data[done * self._block_bytes :], [None] * (full - done))
            before = len(node.blocks)
        return node, before

    def _append(self, node: Node, before: int, data: bytes, blocks: list[int | None]) -> Node:
        """Put blocks after the first `before` ones of `node`, where nothing begins as they do.  Returns the node that they are in."""
        if before < len(node.blocks):
            node = self._split(node, before)
        elif node.is_open and node.children is None and node.heads is None:
            node.run += data
            node.blocks += blocks
            node.gaps += blocks.count(None)
            return node
        child = Node(node, node.begin + before * self.block_size, Leaf(data[: self._block_bytes], blocks[0]))
        child.run += data
        child.blocks += blocks
        child.gaps = blocks.count(None)
        if node.children is None:
            node.children = {}
        node.children[child.first.tokens] = child
        if blocks[0] is not None:
            node.heads = add(node.heads, child.first)
        return child

    def _split(self, node: Node, before: int) -> Node:
        """Move the first `before` blocks (not none, not all) to a new node above.  Returns that one."""
        parent: Node = node.parent  # type: ignore[assignment]  # a root has no blocks to split
        cut = before * self._block_bytes
        front = Node(parent, node.begin, node.first)
        front.run += node.run[:cut]
        front.blocks += node.blocks[:before]
        front.gaps = front.blocks.count(None) if node.gaps else 0
        parent.children[front.first.tokens] = front  # type: ignore[index]  # `node` is among them
        for block in front.blocks:
            if block is not None:
                self._found_in[block] = front
        del node.run[:cut], node.blocks[:before]
        node.parent = front
        node.begin += before * self.block_size
        node.gaps -= front.gaps
        node.first = Leaf(bytes(node.run[: self._block_bytes]), node.blocks[0])
        front.children = {node.first.tokens: node}
        front.heads = None if node.first.block is None else node.first
        return front

    def _vacate(self, node: Node, i: int) -> None:
        """Make a gap of block `i` of `node`."""
        if i == 0:
            parent: Node = node.parent  # type: ignore[assignment]
            parent.heads = remove(parent.heads, node.first)
            node.first.block = None
        node.blocks[i] = None
        node.gaps += 1

    def _prune(self, node: Node) -> None:
        """Take away the end of `node`, and what is before it, as far as these are gaps that nothing follows."""
        while node.children is None and node.heads is None:
            parent = node.parent
            if parent is None:
                node.is_alive = False
                del self._roots[node.first.tokens]
                return
            keep = len(node.blocks)
            while keep and node.blocks[keep - 1] is None:
                keep -= 1
            if keep:
                if keep < len(node.blocks):
                    node.gaps -= len(node.blocks) - keep
                    del node.blocks[keep:], node.run[keep * self._block_bytes :]
                    node.is_open = False
                return
            node.is_alive = False
            del parent.children[node.first.tokens]  # type: ignore[union-attr]  # `node` was among them
            parent.children = parent.children or None
            node = parent

    def check(self) -> None:
        found: dict[int, Node | Tail] = {}
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            children = node.children or {}
            where = f"the node at {node.begin} with {len(node.blocks)} blocks"
            if len(node.run) != len(node.blocks) * self._block_bytes or node.gaps != node.blocks.count(None):
                raise InvariantError(f"{where} has {len(node.run)} bytes of tokens and counts {node.gaps} gaps")
            if not node.is_alive or node.children == {}:
                raise InvariantError(f"{where} is in the tree and not alive, or keeps an empty record of children")
            if not children and node.heads is None and (not node.blocks or node.blocks[-1] is None):
                raise InvariantError(f"{where} ends with a gap that nothing follows")
            tails = [leaf for leaf in leaves(node.heads) if isinstance(leaf, Tail)]
            expected = {id(child.first) for child in children.values() if child.first.block is not None} | {id(tail) for tail in tails}
            if {id(leaf) for leaf in leaves(node.heads)} != expected:
                raise InvariantError(f"the heads after {where} are not those that can be found there")
            for tail in tails:
                if tail.node is not node or not 0 < len(tail.tokens) < self._block_bytes:
                    raise InvariantError(
                        f"the open block {tail.block} after {where} has {len(tail.tokens)} bytes of {self._block_bytes}"
                    )
            for tokens, child in children.items():
                end = node.begin + len(node.blocks) * self.block_size
                if child.parent is not node or child.begin != end or not child.blocks or not child.run.startswith(tokens):
                    raise InvariantError(f"{where} has a child at {child.begin} that does not continue it")
                if child.first.tokens != tokens or child.first.block != child.blocks[0]:
                    raise InvariantError(f"{where} knows a child by another block than its first, {child.blocks[0]}")
            held = [(block, node) for block in node.blocks if block is not None] + [(tail.block, tail) for tail in tails]
            for block, own in held:
                if block in found:
                    raise InvariantError(f"block {block} can be found in two places")
                found[block] = own  # type: ignore[index]
            waiting.extend(children.values())
        if found != self._found_in:
            raise InvariantError(f"{len(found)} blocks are in the tree, {len(self._found_in)} are recorded, or in other places")


def _index(blocks: list[int | None], block: int) -> int:
    """Where `block` stands; eviction takes the last one first."""
    return len(blocks) - 1 if blocks[-1] == block else blocks.index(block)


def _first_gap(blocks: list[int | None], start: int, stop: int) -> int:
    """Index of the first gap from `start` on, at most `stop`."""
    try:
        return blocks.index(None, start, stop)
    except ValueError:
        return stop
