"""`KVCacheManager`: the door through which the scheduler uses the memory.  The contract; layouts stand behind it."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from octavo.core.cache_key import CacheKey
from octavo.core.errors import ConfigError, InvariantError
from octavo.core.outputs import MissReason
from octavo.core.stats import MemoryStats
from octavo.kv.lease import Lease, PrefixMatch
from octavo.kv.prefix_index import Tokens


class Miss(NamedTuple):
    """Why the first token that must be computed is not read; reason None when nothing is missing.  field: for "key differs"."""

    reason: MissReason | None
    field: str | None = None


class Pin(NamedTuple):
    """A pin as it stands: how many tokens it still keeps, and for how long (None: without end)."""

    name: str
    num_tokens: int
    seconds_left: float | None


class KVCacheManager(ABC):
    """Hands out leases on `num_blocks` blocks of `block_size` tokens.  Speaks numbers, keys and leases.

    A lease's life: `match` and `fit` ask; `open` begins it (or `fork`, beside another one); `grow` before a step computes, `commit`
    after the step has written, in turn; `release` ends it, from whatever state, once or more often.

    Two different numbers say how long a sequence is: what it has now, and `final_tokens`, what it can reach at most
    (its prompt and max_tokens, less the last token, whose K and V nobody reads).

    copy_worth: a head of fewer tokens is computed rather than copied; set by who has measured both.  At least 1.
    """

    # Whether leases take memory as they grow, so that `grow` may find none and admission should leave room.
    grows_on_demand: bool
    # Whether `fork` can be used; without it, every sample computes its own prompt.
    can_fork: bool = False
    # Whether `match` can ever find anything that a request left; without it, nobody need wait for what others compute.
    can_find: bool = False

    def __init__(self, block_size: int, copy_worth: int = 1) -> None:
        self.block_size = block_size
        self.copy_worth = copy_worth
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

    @property
    def sharing(self) -> tuple[int, int]:
        """Blocks in leases now, and how many more there would be if each holder had its own.  O(1)."""
        return 0, 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @abstractmethod
    def usable_tokens(self, prompt_len: int) -> int:
        """The largest `final_tokens` that a sequence with this prompt can have when it is alone in the pool."""

    @abstractmethod
    def blocks_at_most(self, prompt_len: int, final_tokens: int) -> int:
        """Blocks that a sequence takes in its life, without sharing."""

    # A lease begins.

    @abstractmethod
    def match(self, key: CacheKey, tokens: Tokens, limit: int) -> PrefixMatch:
        """The longest prefix of `tokens`, at most `limit` tokens long, that needs no computing.  Does not mutate.

        First what was published for the tenant, by whole blocks; then the tenant's own memory; then the head of one more block.
        Valid until the next call that mutates.
        """

    def num_unheld(self, match: PrefixMatch) -> int:
        """Matched blocks that nobody holds: they stop being available when a lease opens on them.  Does not mutate."""
        return 0

    @abstractmethod
    def fit(self, match: PrefixMatch, num_tokens: int, prompt_len: int, final_tokens: int, promised: int) -> PrefixMatch | None:
        """The match as `open` will take it now, so that the lease can then grow to `num_tokens`; None when it doesn't fit.

        Says what becomes of its head: kept (copied or taken over), or dropped, which makes the match shorter.
        Changes nothing but what `stats` tells.  promised: available blocks that others will take first.
        """

    @abstractmethod
    def open(self, match: PrefixMatch, prompt_len: int, final_tokens: int) -> Lease | None:
        """A lease on a match that `fit` gave, or None (and nothing changed) when the memory is short.

        The copy of a head is pending in `lease.copies`; its source is kept until `commit` or `release`.
        """

    def fork(self, lease: Lease, num_tokens: int, final_tokens: int) -> Lease:
        """A second lease on the blocks of the first `num_tokens` tokens of `lease`.  Takes no block.

        An open last block is shared until one of them writes (then `grow` copies it): both leases have `shares_tail`.
        Raises InvariantError when not so many tokens are written yet, or when they wait for a copy; ConfigError when nothing is
        shared here.
        """
        raise ConfigError("kv_layout='reserved' shares no blocks, so no lease can be forked; use kv_layout='paged'")

    def copy_demand(self, lease: Lease) -> int:
        """Blocks that the next write of `lease` would copy, beside those it appends: 0 or 1.  Does not mutate."""
        return 0

    # A lease lives and ends.

    @abstractmethod
    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens, where what is written next is this lease's alone.

        False, and nothing changed, when memory is short.  A block that others hold, or in which others may find more than this lease
        has, is replaced by a copy: pending in `lease.copies`, `lease.changed_from` lowered.
        Nothing is copied for tokens that are written already (`num_tokens <= lease.num_written`).
        """

    @abstractmethod
    def commit(self, lease: Lease, tokens: Tokens, num_written: int) -> None:
        """The K and V of `tokens[:num_written]` are there now, and pending copies are done.  What is written becomes findable."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give back everything that `lease` holds, sources of pending copies included.  Idempotent: a second release does nothing."""

    def keep(self, lease: Lease) -> None:
        """The sequence has ended, but its memory stays until `release`: from now on it counts as internal waste."""
        lease.is_needed = False

    # What stays when leases end.

    def why_missed(self, key: CacheKey, tokens: Tokens, match: PrefixMatch) -> Miss:
        """Why `match` isn't longer, looked up at its first missing block.  Does not mutate.

        Looks only at what the key's tenant and salt computed, and at what is published for the tenant.
        """
        return Miss("no match")

    def publish(self, name: str, key: CacheKey, tokens: Tokens, tenants: frozenset[str] | None) -> None:
        """From now on `tenants` (None: all) may read the full blocks of `tokens` that are computed under `key`.

        key: its namespace is `PublishedNamespace(name)`.  The content comes from an ordinary request under that key.
        Raises InvalidRequestError for a name in use or a key of another namespace, CapacityError when pins and publications would
        cover too much of the pool.
        """
        raise ConfigError("kv_layout='reserved' shares no blocks, so nothing can be published; use kv_layout='paged'")

    def unpublish(self, name: str) -> bool:
        """No new match reads it; who reads it now keeps its blocks, then they are free.  False when nothing has that name."""
        return False

    def pin(self, name: str, key: CacheKey, tokens: Tokens, ttl: float | None) -> int:
        """Evict the full blocks found of `tokens` last, for `ttl` seconds (None: until `unpin`): how many tokens that are.

        A pin of that name is replaced.  Raises CapacityError (and changes nothing) when pins and publications would cover too much.
        """
        raise ConfigError("kv_layout='reserved' keeps nothing when a request ends, so nothing can be pinned; use kv_layout='paged'")

    def unpin(self, name: str) -> bool:
        """False when there is no pin of that name (any more)."""
        return False

    def pins(self) -> list[Pin]:
        """Those that have not expired, by name."""
        return []

    def reset_cache(self) -> int:
        """Forget all content: unheld blocks become free (how many is returned), held ones are found by nobody any more."""
        return 0

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
