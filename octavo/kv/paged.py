"""`PagedKVCache`: blocks taken one by one as sequences grow, and shared where their content is equal."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from octavo.core.cache_key import CacheKey
from octavo.core.errors import ConfigError, InvalidRequestError, InvariantError
from octavo.core.stats import MemoryStats
from octavo.kv.accounting import check_paged, token_shares
from octavo.kv.content import Content
from octavo.kv.copies import PendingCopies
from octavo.kv.eviction import EvictionOrder, LeastCost, LeastRecentlyUsed
from octavo.kv.lease import HeadUse, Lease, PrefixMatch
from octavo.kv.manager import KVCacheManager, Miss, Pin
from octavo.kv.prefix_index import NoIndex, PrefixIndex, Tokens
from octavo.kv.publications import differing_field
from octavo.kv.quotas import Accounts


def same_cost(position: int) -> float:
    """Each token costs the same to compute."""
    return 1.0


class PagedKVCache(KVCacheManager):
    """Paged memory (Kwon et al., PagedAttention, SOSP 2023, sections 4.2 to 4.4): a block is taken only when the last one is full.

    Waste per sequence is below one block, and no free block is ever unusable.  What is in a block only ever grows while it can be
    found: full blocks are shared as they are; of an open one, a sequence that goes on otherwise takes a copy.

    index: finds equal prefixes.
    eviction: "lru", or "cost": by what computing it again would cost.  recompute_cost: of a token at a position, relative to others.
    quotas: blocks that a tenant may leave cached unheld, by tenant; default_quota: for all others (None: no bound).
    pin_share: part of the pool that pins and publications may cover.  clock: seconds, for pins that end.
    Raises ConfigError for a setting that can't be.
    """

    grows_on_demand = True
    can_fork = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        index: PrefixIndex,
        *,
        eviction: str = "lru",
        recompute_cost: Callable[[int], float] = same_cost,
        quotas: Mapping[str, int] | None = None,
        default_quota: int | None = None,
        pin_share: float = 0.5,
        copy_worth: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(block_size, copy_worth)
        if eviction not in ("lru", "cost"):
            raise ConfigError(f"eviction={eviction!r} is not one of lru, cost")
        order: EvictionOrder = LeastRecentlyUsed() if eviction == "lru" else LeastCost(recompute_cost, block_size)
        self._index = index
        self._finds = self.can_find = not isinstance(index, NoIndex)
        self._content = Content(num_blocks, block_size, index, order, Accounts(quotas, default_quota), pin_share, clock)
        self._pool, self._keeper = self._content.pool, self._content.keeper
        self._copies = PendingCopies(self._pool)

    @property
    def num_blocks(self) -> int:
        return self._pool.num_in_service

    @property
    def num_available(self) -> int:
        return self._pool.num_available

    @property
    def sharing(self) -> tuple[int, int]:
        return self._pool.num_leased, self._pool.num_saved

    def usable_tokens(self, prompt_len: int) -> int:
        return self._pool.num_in_service * self.block_size

    def blocks_at_most(self, prompt_len: int, final_tokens: int) -> int:
        return self.blocks_for(final_tokens)

    # A lease begins.

    def match(self, key: CacheKey, tokens: Tokens, limit: int) -> PrefixMatch:
        index, size = self._index, self.block_size
        limit = min(limit, len(tokens))
        published = self._published(key, tokens, limit) if self._keeper.publications else ()
        own = index.match(index.root(key.digest), tokens, limit, len(published))
        blocks = published + own.blocks if published else own.blocks
        num_tokens = len(blocks) * size
        use: HeadUse | None = None
        if own.head is not None:
            if own.head_tokens < self.copy_worth:
                use = "not worth"
            else:
                num_tokens += own.head_tokens
        return PrefixMatch(
            key, tokens, limit, blocks, num_tokens, len(published) * size, own.cursor, own.head, own.head_tokens, own.head_fill, use
        )

    def num_unheld(self, match: PrefixMatch) -> int:
        unheld = self._pool.num_unheld(match.blocks)
        if match.head is not None and match.head_use in (None, "copy", "take", "shorten"):
            unheld += not self._pool.count(match.head)
        return unheld

    def fit(self, match: PrefixMatch, num_tokens: int, prompt_len: int, final_tokens: int, promised: int) -> PrefixMatch | None:
        pool, head = self._pool, match.head
        new = self.blocks_for(max(num_tokens, match.num_tokens)) - len(match.blocks)
        spare = pool.num_available - promised - new - pool.num_unheld(match.blocks)
        if spare < 0:
            return None
        if head is None or match.head_use == "not worth":
            return match
        # Taken over, a head is one of the new blocks: it takes as much room as one that is dropped.
        is_held, is_kept = pool.count(head) > 0, pool.is_protected(head)
        if not (is_held or is_kept) and match.head_fill == match.head_tokens:
            return replace(match, head_use="take")
        if is_held or spare:
            return replace(match, head_use="copy")
        if not is_kept:
            return replace(match, head_use="shorten")
        return replace(match, head_use="no room", num_tokens=match.num_tokens - match.head_tokens)

    def open(self, match: PrefixMatch, prompt_len: int, final_tokens: int) -> Lease | None:
        pool, head, use = self._pool, match.head, match.head_use
        blocks = list(match.blocks)
        if use == "copy" and self.num_unheld(match) >= pool.num_available:
            return None
        if head is not None and (use == "take" or use == "shorten"):
            blocks.append(head)
        pool.retain(blocks)
        lease = Lease(
            final_tokens=final_tokens,
            key=match.key,
            blocks=blocks,
            num_cached=match.num_tokens,
            num_written=match.num_tokens,
            owner=self._content.owner_of(match.key),
            cursor=match.cursor,
            num_inserted=len(match.blocks),
            tokens=match.tokens,
            prompt_len=prompt_len,
            is_findable=self._finds,
        )
        if head is not None and use == "shorten":
            self._content.shorten(head, match.head_tokens)
        elif head is not None and use == "copy":
            pool.retain((head,))
            copy = self._content.allocate(1)
            self._copies.add(lease, head, copy[0], match.head_tokens)
            blocks += copy
        lease.room = len(blocks) * self.block_size
        self._leases.add(lease)
        return lease

    def fork(self, lease: Lease, num_tokens: int, final_tokens: int) -> Lease:
        size = self.block_size
        blocks = lease.blocks[: self.blocks_for(num_tokens)]
        if not lease.is_open or num_tokens > lease.num_written or any(copy in blocks for _, copy in lease.copies):
            raise InvariantError(
                f"{num_tokens} tokens were to be forked off a lease {'with' if lease.is_open else 'released, with'} "
                f"{lease.num_written} written and {len(lease.copies)} copies pending; fork after the commit that writes them"
            )
        self._pool.retain(blocks)
        full = num_tokens // size
        is_open = full < len(blocks)
        if is_open and lease.num_written // size == full:
            lease.shares_tail = True
        fork = replace(
            lease,
            final_tokens=final_tokens,
            blocks=blocks,
            room=len(blocks) * size,
            num_cached=num_tokens,
            num_written=num_tokens,
            copies=[],
            changed_from=0,
            shares_tail=is_open,
            num_inserted=full if lease.num_inserted == full else -1,
            is_needed=True,
        )
        self._leases.add(fork)
        return fork

    def copy_demand(self, lease: Lease) -> int:
        return int(lease.shares_tail and self._must_copy(lease))

    # A lease lives and ends.

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        if (num_tokens <= lease.room and not lease.shares_tail) or num_tokens <= lease.num_written:
            return True
        pool, blocks, size = self._pool, lease.blocks, self.block_size
        missing = max(0, -(-num_tokens // size) - len(blocks))
        if lease.shares_tail:
            place = lease.num_written // size
            tail, fill = blocks[place], lease.num_written % size
            must_copy = self._must_copy(lease)
            if missing + must_copy > pool.num_available:
                return False
            if must_copy or (self._index.fill(tail) > fill and missing < pool.num_available):
                self._content.note_open_ends(lease)
                blocks[place] = self._content.allocate(1)[0]
                self._copies.add(lease, tail, blocks[place], fill)  # with the hold that this lease had
                lease.changed_from = min(lease.changed_from, place)
            elif self._index.fill(tail) > fill:
                self._content.shorten(tail, fill)
            lease.shares_tail = False
        elif missing > pool.num_available:
            return False
        if missing:
            blocks += self._content.allocate(missing)
            lease.room += missing * size
        return True

    def commit(self, lease: Lease, tokens: Tokens, num_written: int) -> None:
        if lease.copies:
            self._copies.end(lease)
            self._content.keep_quotas()
        if num_written <= lease.num_written:
            return
        size = self.block_size
        full_before, full = lease.num_written // size, num_written // size
        lease.num_written, lease.tokens = num_written, tokens
        if full != full_before:  # what may have been shared is full now
            lease.shares_tail = False
        owner = lease.owner
        if owner is None or not lease.is_findable:
            return
        if owner.publication is not None:
            self._content.insert_published(lease, owner, tokens, full_before, full)
            return
        if lease.num_inserted != full:
            self._content.insert(lease, owner, tokens, full_before, full)
        fill = num_written - full * size
        if fill:
            self._content.extend(lease, owner, tokens, full, fill)

    def release(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        self._content.note_open_ends(lease)
        self._copies.end(lease)
        self._pool.release(lease.blocks)
        self._leases.discard(lease)
        lease.is_open = False
        lease.blocks, lease.room, lease.num_cached, lease.num_written = [], 0, 0, 0
        lease.cursor = lease.tokens = None
        self._content.keep_quotas()

    def quarantine(self, block: int) -> None:
        """Take `block` out of use for good: now, or when its last holder lets go.

        Nothing that its holders compute from now on becomes findable.
        """
        for lease in self._leases:
            if block in lease.blocks or any(block == source for source, _ in lease.copies):
                self._content.note_open_ends(lease)
                lease.is_findable = False
        self._content.forget((block,), None)
        self._pool.quarantine(block)

    # What stays when leases end.

    def why_missed(self, key: CacheKey, tokens: Tokens, match: PrefixMatch) -> Miss:
        return self._content.why_missed(key, tokens, match)

    def publish(self, name: str, key: CacheKey, tokens: Tokens, tenants: frozenset[str] | None) -> None:
        self._keeper.expire()
        self._keeper.publish(self._keeper.publications.checked(name, key, tokens, tenants))

    def unpublish(self, name: str) -> bool:
        return self._content.unpublish(name)

    def pin(self, name: str, key: CacheKey, tokens: Tokens, ttl: float | None) -> int:
        if ttl is not None and not ttl > 0:
            raise InvalidRequestError(f"a pin of {ttl} seconds ends at once; give a ttl above 0, or None for no end")
        self._keeper.expire()
        blocks = self.match(key, tokens, len(tokens)).blocks
        self._keeper.pin(name, blocks, ttl)
        self._content.keep_quotas()
        return len(blocks) * self.block_size

    def unpin(self, name: str) -> bool:
        self._keeper.expire()
        is_gone = self._keeper.unpin(name)
        self._content.keep_quotas()
        return is_gone

    def pins(self) -> list[Pin]:
        self._keeper.expire()
        self._content.keep_quotas()
        return self._keeper.pins.as_they_stand(self.block_size)

    def reset_cache(self) -> int:
        for pin in self.pins():
            self._keeper.unpin(pin.name)
        for lease in self._leases:
            self._content.note_open_ends(lease)
            lease.is_findable = False
        return self._content.forget(list(filter(self._pool.is_findable, range(self._pool.num_blocks))), "reset")

    def stats(self) -> MemoryStats:
        pool, size = self._pool, self.block_size
        useful, reserved, internal = token_shares(pool, size, self._leases, self._copies)
        return MemoryStats(
            block_size=size,
            blocks_total=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_leased=pool.num_leased,
            blocks_quarantined=pool.num_quarantined,
            blocks_offline=pool.num_offline,
            tokens_useful=useful,
            tokens_reserved=reserved,
            tokens_internal=internal,
            tokens_external=0,
            tokens_free=pool.num_available * size,
            blocks_shared=pool.num_shared,
            blocks_saved=pool.num_saved,
            blocks_pinned=pool.num_protected,
            evictions_capacity=self._content.evictions["capacity"],
            evictions_quota=self._content.evictions["quota"],
            evictions_reset=self._content.evictions["reset"],
            evictions_unpublished=self._content.evictions["unpublished"],
        )

    def check(self) -> None:
        super().check()
        check_paged(self._pool, self._index, self._leases, self._copies, self._keeper)
        self._content.check()

    # How it is done.

    def _published(self, key: CacheKey, tokens: Tokens, limit: int) -> tuple[int, ...]:
        """The longest run of published blocks that `tokens` begin with."""
        index = self._index
        longest: tuple[int, ...] = ()
        for publication in self._keeper.publications.listed(key, tokens):
            if differing_field(publication.key, key) is None:
                end = min(limit, publication.num_blocks * self.block_size)
                blocks = index.match(index.root(publication.key.digest), tokens, end).blocks
                longest = blocks if len(blocks) > len(longest) else longest
        return longest

    def _must_copy(self, lease: Lease) -> bool:
        """Whether others hold the block that `lease` writes next.  Those that only wait for a copy of what precedes don't count."""
        place, fill = divmod(lease.num_written, self.block_size)
        return self._copies.holders_behind(lease.blocks[place], fill) > 1
