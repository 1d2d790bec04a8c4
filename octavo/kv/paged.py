"""`PagedKVCache`: blocks taken one by one as sequences grow, and shared where prefixes are equal."""

from collections import Counter
from collections.abc import Sequence

from octavo.core.errors import InvariantError
from octavo.core.stats import MemoryStats
from octavo.kv.block_pool import BlockPool
from octavo.kv.lease import Lease
from octavo.kv.manager import KVCacheManager
from octavo.kv.prefix_index import Namespace, PrefixIndex, PrefixMatch


class PagedKVCache(KVCacheManager):
    """Paged memory (Kwon et al., PagedAttention, SOSP 2023, section 4): a block is taken only when the last one is full.

    Waste per sequence is below one block, and no free block is ever unusable.
    """

    grows_on_demand = True

    def __init__(self, num_blocks: int, block_size: int, index: PrefixIndex) -> None:
        super().__init__(block_size)
        self._index = index
        self._pool = BlockPool(num_blocks, on_evict=index.forget)

    @property
    def num_blocks(self) -> int:
        return self._pool.num_in_service

    @property
    def num_available(self) -> int:
        return self._pool.num_available

    def usable_tokens(self, prompt_len: int) -> int:
        return self._pool.num_in_service * self.block_size

    def blocks_at_most(self, prompt_len: int, final_tokens: int) -> int:
        return self.blocks_for(final_tokens)

    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> PrefixMatch:
        return self._index.match(namespace, tokens, limit)

    def num_unheld(self, match: PrefixMatch) -> int:
        return sum(1 for block in match.blocks if not self._pool.count(block))

    def fits(self, match: PrefixMatch, num_tokens: int, prompt_len: int, final_tokens: int, promised: int) -> bool:
        new = self.blocks_for(num_tokens) - len(match.blocks)
        return new + self.num_unheld(match) + promised <= self._pool.num_available

    def open(self, match: PrefixMatch, prompt_len: int, final_tokens: int) -> Lease | None:
        self._pool.retain(match.blocks)
        lease = Lease(
            final_tokens=final_tokens,
            blocks=list(match.blocks),
            room=len(match.blocks) * self.block_size,
            num_cached=match.num_tokens,
            num_written=match.num_tokens,
            cursor=match.cursor,
        )
        self._leases.add(lease)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> list[int] | None:
        missing = self.blocks_for(num_tokens) - len(lease.blocks)
        if missing <= 0:
            return []
        if missing > self._pool.num_available:
            return None
        blocks = self._pool.allocate(missing)
        lease.blocks += blocks
        lease.room += missing * self.block_size
        return blocks

    def commit(self, lease: Lease, tokens: Sequence[int], num_written: int) -> None:
        already_full, full = lease.num_written // self.block_size, num_written // self.block_size
        lease.num_written = max(lease.num_written, num_written)
        for i in range(already_full, full):
            lease.cursor, findable = self._index.insert(lease.cursor, tokens, i * self.block_size, lease.blocks[i])
            if findable:
                self._pool.mark_findable(lease.blocks[i])

    def release(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        self._pool.release(lease.blocks)
        self._leases.discard(lease)
        lease.is_open = False
        lease.blocks, lease.room, lease.num_cached, lease.num_written = [], 0, 0, 0

    def quarantine(self, block: int) -> None:
        """Take `block` out of use for good: now, or when its last holder lets go."""
        self._index.forget(block)
        self._pool.quarantine(block)

    def stats(self) -> MemoryStats:
        pool, size = self._pool, self.block_size
        reserved = internal = 0
        for lease in self._leases:
            if lease.is_needed:
                needed = min(lease.room, lease.final_tokens)
                reserved += needed - lease.num_written
                internal += lease.room - needed
            else:
                internal += size * sum(1 for block in lease.blocks if pool.count(block) == 1)
        return MemoryStats(
            block_size=size,
            blocks_total=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_leased=pool.num_leased,
            blocks_quarantined=pool.num_quarantined,
            blocks_offline=pool.num_offline,
            # Only the open end of a table is unwritten, and it is never shared: so this is right with shared blocks, too.
            tokens_useful=pool.num_leased * size - reserved - internal,
            tokens_reserved=reserved,
            tokens_internal=internal,
            tokens_external=0,
            tokens_free=pool.num_available * size,
        )

    def check(self) -> None:
        super().check()
        self._pool.check()
        entries = Counter(block for lease in self._leases for block in lease.blocks)
        for block in range(self._pool.num_blocks):
            if entries[block] != self._pool.count(block):
                raise InvariantError(f"block {block} is in {entries[block]} tables, but its count is {self._pool.count(block)}")
