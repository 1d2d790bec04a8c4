"""`PrefixIndex`: which blocks already hold the K and V of a prefix.  The contract, and the index that finds nothing."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Who may share with whom: prefixes are found only under an equal namespace.
Namespace = Hashable
# Where a chain of blocks stands in the index: made by the index, opaque to everybody else, never used with another index.
Cursor = object


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest findable prefix of some tokens.

    blocks: ids in the order of the prefix, all full.  num_tokens: how many tokens they hold.
    cursor: where the chain goes on, for `insert`.
    Valid until the next call that mutates the pool or the index: open a lease on it before that, or match again.
    """

    blocks: tuple[int, ...]
    num_tokens: int
    cursor: Cursor


class Insertion(NamedTuple):
    """cursor: after the inserted block.  findable: whether matches now lead to the block that was given."""

    cursor: Cursor
    findable: bool


class PrefixIndex(ABC):
    """Finds full blocks by the tokens that they hold and all tokens before them, inside one namespace.

    An index holds no reference counts: a block stays findable from `insert` to `forget`, whoever holds it meanwhile.  The
    pool decides when to evict, and says so through `forget`.
    """

    @abstractmethod
    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> PrefixMatch:
        """The longest findable prefix of `tokens` that is at most `limit` tokens long.  Does not mutate; raises nothing.

        A hit compares the tokens themselves and the parent block, not only a digest: a collision is a miss.
        """

    @abstractmethod
    def insert(self, cursor: Cursor, tokens: Sequence[int], start: int, block: int) -> Insertion:
        """`block` is full and written: it holds `tokens[start : start + block_size]`, after the chain that `cursor` stands for.

        Mutates.  When another block with the same content is there already, that one stays, the given one does not become
        findable, and the cursor goes on behind the one that stayed.  Reads `block_size` tokens, each once in a sequence's life.
        """

    @abstractmethod
    def forget(self, block: int) -> None:
        """`block` is about to be overwritten: no later match may lead to it, nor through it.  Mutates.

        Does nothing for a block that isn't findable.
        """


class NoIndex(PrefixIndex):
    """Nothing is ever found: prefix caching switched off."""

    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> PrefixMatch:
        return _NOTHING

    def insert(self, cursor: Cursor, tokens: Sequence[int], start: int, block: int) -> Insertion:
        return _NOT_FINDABLE

    def forget(self, block: int) -> None:
        return None


_NOTHING = PrefixMatch(blocks=(), num_tokens=0, cursor=None)
_NOT_FINDABLE = Insertion(cursor=None, findable=False)
