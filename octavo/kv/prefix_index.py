"""`PrefixIndex`: which blocks already hold the K and V of a prefix.  The contract, and the index that finds nothing."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

# Token ids as the index reads them: `array("i")`, 4 bytes each, so that comparing blocks is comparing bytes.
Tokens: TypeAlias = "array[int]"
# Where a chain of full blocks stands in an index: made by the index, opaque to everybody else, never used with another index.
Cursor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """The longest findable prefix of some tokens: full blocks, then perhaps the head of one more.

    blocks: ids of the full blocks, in order; the first ones may have been skipped (see `match`).
    cursor: where the chain of full blocks ends, for `insert` and `extend`.
    head: a block whose first `head_tokens` tokens (fewer than a block) continue the prefix; one whose entry ends just there, if any
        does.  None: no block does.
    head_fill: how many tokens can be found in it, at least head_tokens.
    """

    blocks: tuple[int, ...]
    cursor: Cursor
    head: int | None = None
    head_tokens: int = 0
    head_fill: int = 0


class Insertion(NamedTuple):
    """cursor: after the inserted block.  findable: whether matches now lead to the block that was given."""

    cursor: Cursor
    findable: bool


class PrefixIndex(ABC):
    """Finds blocks by the tokens that they hold and all tokens before them, below a root.

    A root stands for one CacheKey: what differs in the key shares nothing.  An index holds no reference counts: a block stays
    findable from `insert` or `extend` to `forget`, whoever holds it meanwhile.  The pool decides what to evict, and the manager says
    so through `forget`.

    A block is findable in one place at a time, and no two blocks are findable by the same tokens: what would only repeat another is
    refused.  (One that ends earlier than another stays: a match that ends with it can take it over.)

    A place in a chain whose block is forgotten while others follow is a *gap*: nothing is found through it until the same content is
    inserted there again, and then what follows is found again.  A gap that nothing follows costs nothing.

    Tokens are compared themselves, with the parent, not by a digest alone: a collision of digests is a miss, never a wrong hit.
    Cost depends on the tokens named, not on how many blocks, roots, or siblings there are.
    """

    block_size: int

    @abstractmethod
    def root(self, digest: bytes) -> Cursor:
        """The empty chain under the key with this digest.  A root costs nothing until something is inserted below it."""

    @abstractmethod
    def match(self, root: Cursor, tokens: Tokens, limit: int, skip: int = 0) -> IndexMatch:
        """The longest findable prefix of `tokens` of at most `limit` tokens.  Does not mutate; raises nothing.

        skip: that many leading full blocks are had from elsewhere; they may be gaps here, or unknown, and `blocks` begins behind them.
        Nothing is found when they are more than `limit` tokens.
        """

    @abstractmethod
    def insert(self, cursor: Cursor, tokens: Tokens, start: int, block: int) -> Insertion:
        """`block` is full and written: it holds `tokens[start : start + block_size]`, after the chain `tokens[:start]`.  Mutates.

        cursor: as `match` or the last `insert` of this chain gave it, or the root with start 0.  It may be stale: a chain that was
        forgotten or rearranged meanwhile is looked up again from `tokens`, and what is unknown of it is rebuilt as gaps.
        When another block with the same content is there already, that one stays, the given one does not become (or remain)
        findable, and the cursor goes on behind the one that stayed.  What was findable in `block` before (the open tail) gives way.
        """

    def insert_all(self, cursor: Cursor, tokens: Tokens, start: int, blocks: Sequence[int]) -> tuple[Cursor, list[int]]:
        """`insert` for blocks that follow each other, the first from `start` on; cheaper than one by one.  Mutates.

        Returns the cursor after the last, and those of `blocks` that are not findable.
        """
        refused: list[int] = []
        for i, block in enumerate(blocks):
            cursor, findable = self.insert(cursor, tokens, start + i * self.block_size, block)
            if not findable:
                refused.append(block)
        return cursor, refused

    @abstractmethod
    def extend(self, cursor: Cursor, tokens: Tokens, start: int, fill: int, block: int) -> bool:
        """`block` is open: its first `fill` places (0 < fill < block_size) hold `tokens[start : start + fill]`.  Mutates.

        cursor, start: of the chain of full blocks before it, as in `insert`.
        Makes these tokens findable in it; when it was findable already, more of them.  Returns whether they are.  False, and nothing
        changes, when another block has all of them already: a match would have no use for this one (which, findable with fewer
        tokens, stays so).
        """

    @abstractmethod
    def shorten(self, block: int, fill: int) -> None:
        """At most the first `fill` tokens (0 <= fill < block_size) of `block` stay findable.  Mutates.

        For an owner that writes over the rest.
        None of them do when fill is 0, or when another block has all of these tokens, too: ask `fill(block)`.  What followed a full
        block follows a gap now.  Does nothing for a block that is unknown or has no more than `fill` tokens.
        """

    @abstractmethod
    def forget(self, block: int) -> None:
        """`block` is about to be overwritten: no later match may lead to it, nor through it.  Mutates.

        Does nothing for a block that is unknown.
        """

    @abstractmethod
    def fill(self, block: int) -> int:
        """How many tokens can be found in `block` (0: none)."""

    @abstractmethod
    def check(self) -> None:
        """Raise InvariantError when the structure contradicts itself.  O(entries); for tests."""


class NoIndex(PrefixIndex):
    """Nothing is ever found: prefix caching switched off."""

    def root(self, digest: bytes) -> Cursor:
        return None

    def match(self, root: Cursor, tokens: Tokens, limit: int, skip: int = 0) -> IndexMatch:
        return _NOTHING

    def insert(self, cursor: Cursor, tokens: Tokens, start: int, block: int) -> Insertion:
        return _NOT_FINDABLE

    def insert_all(self, cursor: Cursor, tokens: Tokens, start: int, blocks: Sequence[int]) -> tuple[Cursor, list[int]]:
        return None, list(blocks)

    def extend(self, cursor: Cursor, tokens: Tokens, start: int, fill: int, block: int) -> bool:
        return False

    def shorten(self, block: int, fill: int) -> None:
        return None

    def forget(self, block: int) -> None:
        return None

    def fill(self, block: int) -> int:
        return 0

    def check(self) -> None:
        return None


_NOTHING = IndexMatch(blocks=(), cursor=None)
_NOT_FINDABLE = Insertion(cursor=None, findable=False)
