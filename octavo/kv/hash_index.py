"""`HashIndex`: one dict from the hash of (place before, tokens) to the place after."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from octavo.core.errors import InvariantError
from octavo.kv.heads import TOKEN_BYTES, Heads, Leaf, add, covers, leaves, longest, remove
from octavo.kv.prefix_index import Cursor, IndexMatch, Insertion, PrefixIndex, Tokens


class Place(Leaf):
    """The end of a chain of full blocks: the last one's tokens and block (None: a gap, or a root), and what continues the chain.

    parent: the place before (None: this is a root, and `tokens` its key's digest).  key: where the dict has this one.
    followers: how many places and tails have this one as their parent.  heads: those of them that can be found.
    A place with neither block nor followers is in no dict, and never comes back: a cursor that stands on it is stale.
    """

    __slots__ = ("followers", "heads", "key", "parent")

    def __init__(self, parent: Place | None, tokens: bytes, key: int, block: int | None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.key = key
        self.block = block
        self.followers = 0
        self.heads: Heads = None


class Tail(Leaf):
    """An open block: the tokens that can be found in it, and the place that they continue."""

    __slots__ = ("parent",)

    def __init__(self, parent: Place, tokens: bytes, block: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block


class HashIndex(PrefixIndex):
    """Chained hashes, with tokens and parent compared on every hit.

    hash_chunk: hash of (key of the place before, secret + token bytes).  The secret is drawn per index and goes through Python's hash
    of bytes (SipHash: Aumasson and Bernstein, INDOCRYPT 2012) with the tokens, so nobody can construct tokens that collide, not even
    where PYTHONHASHSEED is fixed.  A collision would still be a miss only: what comes second can't be found.
    """

    def __init__(self, block_size: int, hash_chunk: Callable[[tuple[int, bytes]], int] = hash) -> None:
        self.block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._hash_chunk = hash_chunk
        self._secret = os.urandom(16)
        self._roots: dict[bytes, Place] = {}
        self._places: dict[int, Place] = {}
        self._found_in: dict[int, Place | Tail] = {}  # block -> where it can be found

    def root(self, digest: bytes) -> Cursor:
        return self._roots.get(digest) or Place(None, digest, self._hash_chunk((0, self._secret + digest)), None)

    def match(self, root: Cursor, tokens: Tokens, limit: int, skip: int = 0) -> IndexMatch:
        place: Place = self._roots.get(root.tokens) or root
        end, width = max(0, min(limit, len(tokens))), self._block_bytes
        full = end // self.block_size
        data = tokens[:end].tobytes()
        get, hash_chunk, secret = self._places.get, self._hash_chunk, self._secret
        blocks: list[int] = []
        if skip:
            known = self._walk(place, data[: skip * width]) if skip <= full else None
            if known is None:
                return IndexMatch((), _nowhere(place))
            place = known
        for at in range(skip * width, full * width, width):
            chunk = data[at : at + width]
            found = get(hash_chunk((place.key, secret + chunk)))
            if found is None or found.parent is not place or found.tokens != chunk or found.block is None:
                break
            blocks.append(found.block)
            place = found
        at = (skip + len(blocks)) * width
        head = longest(place.heads, data[at : at + width])
        if head is None:
            return IndexMatch(tuple(blocks), place)
        leaf, common = head
        return IndexMatch(tuple(blocks), place, leaf.block, common, len(leaf.tokens) // TOKEN_BYTES)

    def insert(self, cursor: Cursor, tokens: Tokens, start: int, block: int) -> Insertion:
        place: Place = cursor
        if place.block is None and not place.followers:
            rebuilt = self._rebuild(cursor, tokens, start)
            if rebuilt is None:
                return self._refuse(cursor, block)
            place = rebuilt
        chunk = tokens[start : start + self.block_size].tobytes()
        key = self._hash_chunk((place.key, self._secret + chunk))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Place(place, chunk, key, block)
            place.followers += 1
        elif found.parent is not place or found.tokens != chunk:
            self._prune(place)
            return self._refuse(cursor, block)
        elif found.block is None:
            found.block = block
        else:
            if found.block != block:
                self.forget(block)
            return Insertion(found, found.block == block)
        before = self._found_in.get(block)
        if before is not None:
            self._leave(before)
        heads = place.heads
        place.heads = found if heads is None else add(heads, found)
        self._found_in[block] = found
        return Insertion(found, True)

    def insert_all(self, cursor: Cursor, tokens: Tokens, start: int, blocks: Sequence[int]) -> tuple[Cursor, list[int]]:
        width, refused = self._block_bytes, []
        data = tokens[start : start + len(blocks) * self.block_size].tobytes()
        hash_chunk, secret, places, found_in = self._hash_chunk, self._secret, self._places, self._found_in
        are_new = found_in.keys().isdisjoint(blocks)  # usually all are but the first, which was open
        for i, block in enumerate(blocks):
            if (are_new or block not in found_in) and (cursor.block is not None or cursor.followers):
                chunk = data[i * width : (i + 1) * width]
                key = hash_chunk((cursor.key, secret + chunk))
                place = Place(cursor, chunk, key, block)
                if places.setdefault(key, place) is place:  # nothing was there: the usual case
                    found_in[block] = place
                    cursor.followers += 1
                    cursor.heads = place if cursor.heads is None else add(cursor.heads, place)
                    cursor = place
                    continue
            cursor, findable = self.insert(cursor, tokens, start + i * self.block_size, block)
            if not findable:
                refused.append(block)
        return cursor, refused

    def extend(self, cursor: Cursor, tokens: Tokens, start: int, fill: int, block: int) -> bool:
        place: Place = cursor
        if place.block is None and not place.followers:
            rebuilt = self._rebuild(cursor, tokens, start)
            if rebuilt is None:
                return False
            place = rebuilt
        head = tokens[start : start + fill].tobytes()
        own, heads = self._found_in.get(block), place.heads
        if own is not None and own.parent is place:
            if own.tokens.startswith(head):
                return True
            if heads is own and type(own) is Tail:  # nobody else is near, so the trie stays as it is
                own.tokens = head
                return True
        if covers(heads, head):
            return False
        tail = self._found_in[block] = Tail(place, head, block)
        place.followers += 1
        if own is not None:
            self._leave(own)
        place.heads = add(place.heads, tail)
        return True

    def shorten(self, block: int, fill: int) -> None:
        own = self._found_in.get(block)
        if own is None or len(own.tokens) <= fill * TOKEN_BYTES:
            return
        head = own.tokens[: fill * TOKEN_BYTES]
        place: Place = own.parent  # type: ignore[assignment]  # a root holds no block
        place.heads = remove(place.heads, own)
        if head and not covers(place.heads, head):
            tail = self._found_in[block] = Tail(place, head, block)
            place.followers += 1
            place.heads = add(place.heads, tail)
        else:
            del self._found_in[block]
        self._drop(own)

    def forget(self, block: int) -> None:
        own = self._found_in.pop(block, None)
        if own is not None:
            self._leave(own)

    def fill(self, block: int) -> int:
        own = self._found_in.get(block)
        return 0 if own is None else len(own.tokens) // TOKEN_BYTES

    def _walk(self, place: Place, data: bytes) -> Place | None:
        """The place after `data` (full blocks' bytes) behind `place`, through gaps, too; None where the chain is not known."""
        for at in range(0, len(data), self._block_bytes):
            chunk = data[at : at + self._block_bytes]
            found = self._places.get(self._hash_chunk((place.key, self._secret + chunk)))
            if found is None or found.parent is not place or found.tokens != chunk:
                return None
            place = found
        return place

    def _rebuild(self, cursor: Cursor, tokens: Tokens, start: int) -> Place | None:
        """The place after `tokens[:start]` below the cursor's root, made of gaps where it is unknown.  None: a collision."""
        root: Place = cursor
        while root.parent is not None:
            root = root.parent
        place = self._roots.setdefault(root.tokens, root)
        for at in range(0, start, self.block_size):
            chunk = tokens[at : at + self.block_size].tobytes()
            key = self._hash_chunk((place.key, self._secret + chunk))
            found = self._places.get(key)
            if found is None:
                found = self._places[key] = Place(place, chunk, key, None)
                place.followers += 1
            elif found.parent is not place or found.tokens != chunk:
                self._prune(place)
                return None
            place = found
        return place

    def _refuse(self, cursor: Cursor, block: int) -> Insertion:
        """What `insert` answers to a collision."""
        self.forget(block)
        return Insertion(_nowhere(cursor), False)

    def _leave(self, own: Place | Tail) -> None:
        """What is here can't be found any more."""
        place: Place = own.parent  # type: ignore[assignment]  # a root holds no block
        place.heads = remove(place.heads, own)
        self._drop(own)

    def _drop(self, own: Place | Tail) -> None:
        """`own` is out of its parent's heads: end the tail, or make the place a gap."""
        if isinstance(own, Tail):
            own.parent.followers -= 1
            self._prune(own.parent)
        else:
            own.block = None
            self._prune(own)

    def _prune(self, place: Place) -> None:
        """Take away `place`, and what is before it, as far as these are gaps that nothing follows."""
        while place.block is None and not place.followers:
            if place.parent is None:
                del self._roots[place.tokens]
                return
            del self._places[place.key]
            place = place.parent
            place.followers -= 1

    def check(self) -> None:
        children: dict[int, list[Leaf]] = {}
        for key, place in self._places.items():
            if place.key != key or place.parent is None or len(place.tokens) != self._block_bytes:
                raise InvariantError(f"the place under key {key} has key {place.key} and {len(place.tokens)} bytes of tokens")
            if place.block is None and not place.followers:
                raise InvariantError(f"a gap under key {key} that nothing follows was not pruned")
            if place.block is not None and self._found_in.get(place.block) is not place:
                raise InvariantError(f"block {place.block} stands in a place that is not recorded as its own")
            children.setdefault(id(place.parent), []).append(place)
        for block, own in self._found_in.items():
            if own.block != block:
                raise InvariantError(f"block {block} is recorded where block {own.block} stands")
            if isinstance(own, Tail):
                if not 0 < len(own.tokens) < self._block_bytes:
                    raise InvariantError(f"the open block {block} has {len(own.tokens)} bytes of {self._block_bytes}")
                children.setdefault(id(own.parent), []).append(own)
            elif self._places.get(own.key) is not own:
                raise InvariantError(f"block {block} is recorded in a place that is not in the index")
        parents = [*self._roots.values(), *self._places.values()]
        for place in parents:
            below = children.pop(id(place), [])
            if place.followers != len(below) or (place.parent is None and not below):
                raise InvariantError(f"a place counts {place.followers} followers and has {len(below)}")
            if {id(leaf) for leaf in leaves(place.heads)} != {id(leaf) for leaf in below if leaf.block is not None}:
                raise InvariantError(f"the heads after a place (block {place.block}) are not those that can be found there")
        if children:
            raise InvariantError(f"{len(children)} places that have followers are not in the index")


def _nowhere(cursor: Cursor) -> Place:
    """A stale cursor below the same root: whatever is inserted with it is looked up from the root."""
    root: Place = cursor
    while root.parent is not None:
        root = root.parent
    return Place(root, b"", 0, None)
