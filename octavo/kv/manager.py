"""`KVCacheManager`: the door through which the scheduler uses the memory.  The contract; layouts stand behind it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.core.errors import InvariantError
from octavo.core.stats import MemoryStats
from octavo.kv.lease import Lease
from octavo.kv.prefix_index import Namespace, PrefixMatch


class KVCacheManager(ABC):
    """Hands out leases on `num_blocks` blocks of `block_size` tokens.  Speaks numbers, namespaces and leases.

    A lease's life: `match` and `fits` ask; `open` begins it; `grow` before a step computes, `commit` after the step has
    written, in turn; `release` ends it, from whatever state, once or more often.

    Two different numbers say how long a sequence is: what it has now, and `final_tokens`, what it can reach at most
    (its prompt and max_tokens, less the last token, whose K and V nobody reads).
    """

    # Whether leases take memory as they grow, so that `grow` may find none and admission should leave room.
    grows_on_demand: bool

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._leases: set[Lease] = set()

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks that requests can use (quarantined and offline ones do not count)."""

    @property
    @abstractmethod
    def num_available(self) -> int:
        """Blocks that can be taken now, cached ones included."""

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @abstractmethod
    def usable_tokens(self, prompt_len: int) -> int:
        """The largest `final_tokens` that a sequence with this prompt can have when it is alone in the pool."""

    @abstractmethod
    def blocks_at_most(self, prompt_len: int, final_tokens: int) -> int:
        """Blocks that a sequence takes in its life, without sharing."""

    @abstractmethod
    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> PrefixMatch:
        """The longest prefix of `tokens`, at most `limit` tokens long, that needs no computing.  Does not mutate.

        Valid until the next call that mutates.
        """

    def num_unheld(self, match: PrefixMatch) -> int:
        """Matched blocks that nobody holds: they stop being available when a lease opens on them.  Does not mutate."""
        return 0

    @abstractmethod
    def fits(self, match: PrefixMatch, num_tokens: int, prompt_len: int, final_tokens: int, promised: int) -> bool:
        """Whether `open` would succeed and the lease could then grow to `num_tokens`.  Changes nothing but what `stats` tells.

        promised: available blocks that others will take first.
        """

    @abstractmethod
    def open(self, match: PrefixMatch, prompt_len: int, final_tokens: int) -> Lease | None:
        """A lease that holds the matched blocks, or None (and nothing changed) when the memory is short."""

    @abstractmethod
    def grow(self, lease: Lease, num_tokens: int) -> list[int] | None:
        """Make room for `num_tokens` tokens: the ids of the blocks appended, or None (and nothing changed) when memory is short."""

    @abstractmethod
    def commit(self, lease: Lease, tokens: Sequence[int], num_written: int) -> None:
        """The K and V of `tokens[:num_written]` are there now.  Blocks that are full by that become findable."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give back everything that `lease` holds.  Idempotent: a second release does nothing."""

    def keep(self, lease: Lease) -> None:
        """The sequence has ended, but its memory stays until `release`: from now on it counts as internal waste."""
        lease.is_needed = False

    @abstractmethod
    def stats(self) -> MemoryStats:
        """Where every block and every token's place is at this moment.  O(leases)."""

    def check(self) -> None:
        """Raise InvariantError when a law of the memory doesn't hold.  O(blocks); for tests and for the watchful."""
        for lease in self._leases:
            if not lease.is_open:
                raise InvariantError("a released lease is still counted")
            if lease.room != len(lease.blocks) * self.block_size:
                raise InvariantError(f"a lease of {len(lease.blocks)} blocks of {self.block_size} says it has room for {lease.room}")
            if not lease.num_cached <= lease.num_written <= lease.room:
                raise InvariantError(
                    f"a lease with room for {lease.room} tokens says that {lease.num_written} are written, {lease.num_cached} cached"
                )
