"""Where every place of a paged pool is, and whether tables, counts and index agree."""

from collections import Counter
from collections.abc import Collection

from octavo.core.errors import InvariantError
from octavo.kv.block_pool import BlockPool
from octavo.kv.copies import PendingCopies
from octavo.kv.keeper import Keeper
from octavo.kv.lease import Lease
from octavo.kv.prefix_index import PrefixIndex


def token_shares(pool: BlockPool, block_size: int, leases: Collection[Lease], copies: PendingCopies) -> tuple[int, int, int]:
    """Places of leased blocks that are (useful, reserved, internal), as MemoryStats has it; each place once, whoever shares it.

    O(leases), and O(blocks held) while there are leases of ended sequences.
    """
    reserved = internal = 0
    shared_tails: dict[int, tuple[int, int, int]] = {}  # block -> how many end in it, and places written and needed by any of them
    for lease in leases:
        if not lease.is_needed:
            continue
        needed = min(lease.room, lease.final_tokens)
        unwritten, unneeded = needed - lease.num_written, lease.room - needed
        place, fill = divmod(lease.num_written, block_size)
        if lease.shares_tail and pool.count(tail := lease.blocks[place]) > 1:
            wanted = min(block_size, needed - place * block_size)
            count, written, most = shared_tails.get(tail, (0, 0, 0))
            shared_tails[tail] = count + 1, max(written, fill), max(most, wanted)
            unwritten -= wanted - fill
            unneeded -= block_size - wanted
        reserved += unwritten
        internal += unneeded
    for tail, (count, written, most) in shared_tails.items():
        if count + copies.count(tail) == pool.count(tail):  # else somebody has it in full
            reserved += most - written
            internal += block_size - most
    kept = {block for lease in leases if not lease.is_needed for block in lease.blocks}
    if kept:
        kept.difference_update(*(lease.blocks for lease in leases if lease.is_needed))
        internal += block_size * len(kept)
    return pool.num_leased * block_size - reserved - internal, reserved, internal


def check_paged(pool: BlockPool, index: PrefixIndex, leases: Collection[Lease], copies: PendingCopies, keeper: Keeper) -> None:
    """Raise InvariantError when leases, counts, pending copies, index and what is kept contradict each other.  O(blocks)."""
    entries = Counter(block for lease in leases for block in lease.blocks)
    pending = Counter(source for lease in leases for source, _ in lease.copies)
    for block in range(pool.num_blocks):
        if entries[block] + pending[block] != pool.count(block) or pending[block] != copies.count(block):
            raise InvariantError(
                f"block {block} is in {entries[block]} tables and read by {pending[block]} copies ({copies.count(block)} noted), "
                f"but its count is {pool.count(block)}"
            )
        if pool.is_findable(block) != (index.fill(block) > 0):
            raise InvariantError(
                f"the pool says findable={pool.is_findable(block)} of block {block}; the index finds {index.fill(block)}"
            )
        if pool.is_protected(block) != (block in keeper):
            raise InvariantError(
                f"block {block} is {'' if pool.is_protected(block) else 'not '}protected, unlike pins and publications say"
            )
    for lease in leases:
        for _, copy in lease.copies:
            if copy not in lease.blocks or pool.count(copy) != 1:
                raise InvariantError(f"block {copy} waits for a copy, but its lease doesn't have it to itself")
