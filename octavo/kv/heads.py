"""Which of a chain position's continuations begins as these tokens do, for longest: a Patricia trie over the bytes of tokens.

Follows Morrison, "PATRICIA", Journal of the ACM 15(4), 1968: inner nodes keep only where keys part, so a search runs down blindly and
compares with one key at its end.  A search and a change visit at most one node per byte of a block, however many siblings there are.

The trie of one continuation is that continuation itself, so a chain without branches has no trie at all.
"""

from __future__ import annotations

TOKEN_BYTES = 4  # of a token id in `array("i")`


class Leaf:
    """What continues a chain: the tokens that can be found, as bytes, and the block that holds them (None: a gap, in no trie)."""

    __slots__ = ("block", "tokens")

    def __init__(self, tokens: bytes, block: int | None) -> None:
        self.tokens = tokens
        self.block = block


class Branch:
    """Where keys part.  Edges are single bytes, so there are at most 256: looking for the first is cheap whatever was removed before.

    depth: number of bytes that all keys below have in common.
    end: the leaf whose tokens end just here.
    """

    __slots__ = ("depth", "edges", "end")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.edges: dict[int, Leaf | Branch] = {}
        self.end: Leaf | None = None

    def attach(self, node: Leaf | Branch, tokens: bytes) -> None:
        """Put below this branch what `tokens` lead to."""
        if isinstance(node, Leaf) and len(tokens) == self.depth:
            self.end = node
        else:
            self.edges[tokens[self.depth]] = node


Heads = Leaf | Branch | None


def common_bytes(one: bytes, other: bytes | bytearray) -> int:
    """How many leading bytes are equal."""
    length = min(len(one), len(other))
    # The lowest bit in which two little-endian numbers differ lies in the first byte that differs.
    difference = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    return ((difference & -difference).bit_length() - 1) >> 3 if difference else length


def nearest(heads: Leaf | Branch, tokens: bytes) -> Leaf:
    """A leaf that has as many leading bytes in common with `tokens` as any, which may be none."""
    node, length = heads, len(tokens)
    while isinstance(node, Branch) and node.depth < length:
        step = node.edges.get(tokens[node.depth])
        if step is None:
            break
        node = step
    while isinstance(node, Branch):
        node = node.end or next(iter(node.edges.values()))
    return node


def longest(heads: Heads, tokens: bytes) -> tuple[Leaf, int] | None:
    """The leaf with the longest head in common with `tokens`, and that head's tokens (at least 1).  None: no leaf has one.

    Of several it is one that ends with the head, if there is one.
    """
    if heads is None:
        return None
    leaf = nearest(heads, tokens)
    common = common_bytes(leaf.tokens, tokens) // TOKEN_BYTES
    if not common:
        return None
    end = common * TOKEN_BYTES
    if len(leaf.tokens) > end:
        node = heads
        while isinstance(node, Branch) and node.depth < end:
            node = node.edges[tokens[node.depth]]
        if isinstance(node, Branch) and node.depth == end and node.end is not None:
            leaf = node.end
    return leaf, common


def covers(heads: Heads, tokens: bytes) -> bool:
    """Whether a leaf begins with all of `tokens` (at least one)."""
    return heads is not None and nearest(heads, tokens).tokens.startswith(tokens)


def add(heads: Heads, leaf: Leaf) -> Leaf | Branch:
    """The trie with `leaf`, whose tokens no other leaf has just so.  Mutates."""
    if heads is None:
        return leaf
    tokens = leaf.tokens
    near = nearest(heads, tokens).tokens
    depth = common_bytes(near, tokens)
    above, node = None, heads
    while isinstance(node, Branch) and node.depth < depth:
        above, node = node, node.edges[tokens[node.depth]]
    if isinstance(node, Branch) and node.depth == depth:
        node.attach(leaf, tokens)
        return heads
    branch = Branch(depth)
    branch.attach(node, near)
    branch.attach(leaf, tokens)
    if above is None:
        return branch
    above.edges[tokens[above.depth]] = branch
    return heads


def remove(heads: Heads, leaf: Leaf) -> Heads:
    """The trie without `leaf`, which is in it.  Mutates."""
    tokens = leaf.tokens
    above: Branch | None = None
    branch: Branch | None = None
    node = heads
    while isinstance(node, Branch):
        above, branch = branch, node
        node = node.end if node.depth == len(tokens) else node.edges[tokens[node.depth]]
    if branch is None:
        return None
    if branch.end is leaf:
        branch.end = None
    else:
        del branch.edges[tokens[branch.depth]]
    if len(branch.edges) + (branch.end is not None) > 1:
        return heads
    rest = branch.end or next(iter(branch.edges.values()))
    if above is None:
        return rest
    above.edges[tokens[above.depth]] = rest
    return heads


def leaves(heads: Heads) -> list[Leaf]:
    """All leaves, in no order that means anything."""
    found: list[Leaf] = []
    waiting = [] if heads is None else [heads]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Branch):
            waiting.extend(node.edges.values())
            if node.end is not None:
                waiting.append(node.end)
        else:
            found.append(node)
    return found
