"""`ReservedKVCache`: one contiguous region per request, sized when it starts.  What paging replaced, to compare with."""

from collections.abc import Callable

from octavo.core.cache_key import CacheKey
from octavo.core.errors import ConfigError, InvariantError
from octavo.core.stats import MemoryStats
from octavo.kv.buddy import BuddyAllocator
from octavo.kv.lease import Lease, PrefixMatch
from octavo.kv.manager import KVCacheManager
from octavo.kv.prefix_index import Tokens

# Tokens of the region for (prompt tokens, output tokens, max_model_len); SOSP 2023, PagedAttention, section 6.1, "Orca".
RESERVE_POLICIES: dict[str, Callable[[int, int, int], int]] = {
    "max": lambda prompt, output, max_model_len: max_model_len,
    "pow2": lambda prompt, output, max_model_len: min(prompt + power_of_two_from(output), max_model_len),
    "oracle": lambda prompt, output, max_model_len: prompt + output,
}


class ReservedKVCache(KVCacheManager):
    """A region per request of the size that a policy says, rounded up to a run of 2**k blocks by a buddy allocator.

    "max": the longest sequence the model takes; "pow2": the prompt and its output rounded up to a power of two; "oracle": the
    prompt and its output exactly (max_tokens stands for the true length: exact when `ignore_eos` is set).  Blocks of a region have
    consecutive ids, so they lie side by side in memory.  Nothing is shared, nothing grows.

    Raises ConfigError when the pool can't hold one region of "max", or for an unknown policy.
    """

    grows_on_demand = False

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int, reserve: str) -> None:
        super().__init__(block_size)
        if reserve not in RESERVE_POLICIES:
            raise ConfigError(f"reserve={reserve!r} is not one of {', '.join(RESERVE_POLICIES)}")
        self._buddies = BuddyAllocator(num_blocks)
        self._region_tokens = RESERVE_POLICIES[reserve]
        self._max_model_len = max_model_len
        self._longest_refused = 0  # blocks of the region that last found no run: shorter free runs are of no use to it
        if reserve == "max" and self.blocks_for(max_model_len) > self._buddies.largest_run:
            raise ConfigError(
                f"reserve='max' sets {self.blocks_for(max_model_len)} blocks side by side apart for max_model_len={max_model_len}; "
                f"the longest run in {num_blocks} blocks is {self._buddies.largest_run}; "
                "lower max_model_len, or raise num_blocks or kv_cache_memory_bytes"
            )

    @property
    def num_blocks(self) -> int:
        return self._buddies.num_blocks

    @property
    def num_available(self) -> int:
        return self._buddies.num_blocks - self._buddies.num_taken

    def usable_tokens(self, prompt_len: int) -> int:
        longest = min(self._buddies.largest_run * self.block_size, self._max_model_len)
        rest = longest - prompt_len
        if rest <= 0 or self._region(prompt_len, longest) <= longest:
            return longest
        return prompt_len + (1 << (rest.bit_length() - 1))  # what "pow2" rounds up to must fit, too

    def blocks_at_most(self, prompt_len: int, final_tokens: int) -> int:
        return self.blocks_for(self._region(prompt_len, final_tokens))

    def match(self, key: CacheKey, tokens: Tokens, limit: int) -> PrefixMatch:
        return PrefixMatch(key, tokens, min(limit, len(tokens)))

    def fit(self, match: PrefixMatch, num_tokens: int, prompt_len: int, final_tokens: int, promised: int) -> PrefixMatch | None:
        num_blocks = self.blocks_at_most(prompt_len, final_tokens)
        if self._buddies.can_allocate(num_blocks):
            return match
        self._longest_refused = num_blocks
        return None

    def open(self, match: PrefixMatch, prompt_len: int, final_tokens: int) -> Lease | None:
        num_blocks = self.blocks_at_most(prompt_len, final_tokens)
        start = self._buddies.allocate(num_blocks)
        if start is None:
            return None
        if num_blocks >= self._longest_refused:
            self._longest_refused = 0
        lease = Lease(
            final_tokens=final_tokens,
            key=match.key,
            blocks=list(range(start, start + num_blocks)),
            room=num_blocks * self.block_size,
            prompt_len=prompt_len,
            is_findable=False,
        )
        self._leases.add(lease)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        if num_tokens > lease.room:
            raise InvariantError(f"a region reserved for {lease.room} tokens was to hold {num_tokens}")
        return True

    def commit(self, lease: Lease, tokens: Tokens, num_written: int) -> None:
        lease.num_written = max(lease.num_written, num_written)

    def release(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        self._buddies.free(lease.blocks[0])
        self._leases.discard(lease)
        lease.is_open = False
        lease.blocks, lease.room, lease.num_written = [], 0, 0

    def stats(self) -> MemoryStats:
        total, taken, size = self._buddies.num_blocks, self._buddies.num_taken, self.block_size
        free = self._buddies.num_free_in_runs_of(self._longest_refused)
        useful = reserved = leased = 0
        for lease in self._leases:
            leased += len(lease.blocks)
            if lease.is_needed:
                useful += lease.num_written
                reserved += max(0, lease.final_tokens - lease.num_written)
        return MemoryStats(
            block_size=size,
            blocks_total=total,
            blocks_free=total - taken,
            blocks_cached=0,
            blocks_leased=taken,
            blocks_quarantined=0,
            blocks_offline=0,
            tokens_useful=useful,
            tokens_reserved=reserved,
            tokens_internal=leased * size - useful - reserved,
            # The paper counts what the buddy allocator rounds up as external: it is no part of the region that was asked for.
            tokens_external=(total - leased - free) * size,
            tokens_free=free * size,
        )

    def check(self) -> None:
        super().check()
        self._buddies.check()
        runs = sum(self._buddies.run_size(lease.blocks[0]) for lease in self._leases)
        if runs != self._buddies.num_taken:
            raise InvariantError(f"leases hold runs of {runs} blocks together, but {self._buddies.num_taken} are taken")

    def _region(self, prompt_len: int, final_tokens: int) -> int:
        return self._region_tokens(prompt_len, final_tokens - prompt_len, self._max_model_len)


def power_of_two_from(number: int) -> int:
    """The smallest power of two that is at least `number` (0 for 0 and below)."""
    return 0 if number <= 0 else 1 << (number - 1).bit_length()
