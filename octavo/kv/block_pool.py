"""`BlockPool`: which block is in whose hands.  Ids and counts only; bytes live elsewhere."""

from collections.abc import Callable, Iterable, Sequence

from octavo.core.errors import CapacityError, ConfigError, InvariantError
from octavo.kv.eviction import EvictionOrder, LeastRecentlyUsed

# What is known of a block beside its count.  Almost all blocks are plain: 0 or FINDABLE.
FINDABLE, PROTECTED, DISTRUSTED = 1, 2, 4


def _ignore_eviction(blocks: list[int]) -> None:
    """Nobody keeps a record of what blocks hold."""


class BlockPool:
    """`num_blocks` blocks with ids 0, 1, ... and a reference count each.

    A block is in exactly one state:
        leased: its count is above 0 (a block that is also findable counts as leased);
        cached: count 0, but its content can still be found: it waits in the eviction order;
        free: count 0 and nothing to find;
        quarantined: taken out of use because its content can't be trusted;
        offline: not backed by memory at present.
    Free blocks are taken before cached ones are evicted, the last freed first (its memory is warm in the processor's caches).
    Protected blocks wait in a second order, which is touched when the first is empty.
    Every method is O(1) per block named (O(log n) if `order` is), whatever the size of the pool.

    on_evict(blocks): called with cached blocks that are about to be taken for other content.
    order: which cached block goes first; least recently used, if not given.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[list[int]], None] = _ignore_eviction, order: EvictionOrder | None = None
    ) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks can hold nothing; raise num_blocks or kv_cache_memory_bytes")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._counts = [0] * num_blocks
        self._flags = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: its end is taken next
        self._cached = LeastRecentlyUsed() if order is None else order
        self._kept: EvictionOrder = LeastRecentlyUsed()  # cached and protected
        self._quarantined: set[int] = set()
        self._offline: set[int] = set()
        self._num_holds = 0  # the sum of all counts
        self.num_shared = 0
        self.num_protected = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._kept)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give now: free ones and cached ones."""
        return len(self._free) + len(self._cached) + len(self._kept)

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def num_offline(self) -> int:
        return len(self._offline)

    @property
    def num_in_service(self) -> int:
        """Blocks that requests can use, now or after others let go of them."""
        return self.num_blocks - len(self._quarantined) - len(self._offline)

    @property
    def num_leased(self) -> int:
        return self.num_in_service - self.num_available

    @property
    def num_saved(self) -> int:
        """How many more blocks there would be if each holder had its own."""
        return self._num_holds - self.num_leased

    def count(self, block: int) -> int:
        """How many hold `block`."""
        return self._counts[block]

    def is_findable(self, block: int) -> bool:
        return self._flags[block] & FINDABLE != 0

    def is_protected(self, block: int) -> bool:
        return self._flags[block] & PROTECTED != 0

    def num_unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody holds."""
        return list(map(self._counts.__getitem__, blocks)).count(0)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` blocks, each with count 1.  Raises CapacityError (and takes none) when fewer are available."""
        free, counts = self._free, self._counts
        missing = num_blocks - len(free)
        if missing <= 0:
            first = len(free) - num_blocks
            taken = free[first:]
            taken.reverse()
            del free[first:]
        else:
            if num_blocks > self.num_available:
                raise CapacityError(
                    f"{num_blocks} blocks were asked for; {self.num_free} are free and {self.num_cached} cached of {self.num_blocks}; "
                    "raise num_blocks or kv_cache_memory_bytes"
                )
            evicted = self._evict(missing)
            taken = free[::-1] + evicted
            free.clear()
        for block in taken:
            counts[block] = 1
        self._num_holds += num_blocks
        self._cached.renew(taken)
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """One more holder for each of `blocks`, which are leased or cached (a cached one leaves the eviction order).

        Raises InvariantError, and changes nothing, when one of them is in another state.
        """
        counts, flags, discard = self._counts, self._flags, self._cached.discard
        unheld = [block for block in blocks if not counts[block]]
        if unheld and (stray := [block for block in unheld if not flags[block] & FINDABLE]):  # else they are cached
            raise InvariantError(f"blocks {stray} were to be shared, but nobody holds them and nothing in them can be found")
        for block in blocks:
            count = counts[block]
            counts[block] = count + 1
            if not count:
                if flags[block] & PROTECTED:
                    self._kept.discard(block)
                else:
                    discard(block)
            elif count == 1:
                self.num_shared += 1
        self._num_holds += len(blocks)
        self._cached.reuse(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """One holder of each of `blocks` (in the order of its table) lets go; the tail goes first.

        The tail of a sequence is the least likely to be found again, so it is the first to be evicted.
        Raises InvariantError, and changes nothing, when a block is named twice or held by nobody.
        """
        counts, flags = self._counts, self._flags
        if len(set(blocks)) != len(blocks):
            raise InvariantError(f"a block was released twice in one call: {list(blocks)}")
        if 0 in map(counts.__getitem__, blocks):
            stray = [block for block in blocks if not counts[block]]
            raise InvariantError(f"blocks {stray} were released, but nobody holds them (released twice?)")
        resting = []
        for block in reversed(blocks):
            count = counts[block] - 1
            counts[block] = count
            if not count:
                flag = flags[block]
                if flag == FINDABLE:
                    resting.append(block)
                elif not flag:
                    self._free.append(block)
                else:
                    self._put_aside(block, flag)
            elif count == 1:
                self.num_shared -= 1
        self._num_holds -= len(blocks)
        self._cached.rest(blocks, resting)

    def release_one(self, block: int) -> None:
        """As `release`, for a block without its table."""
        count = self._counts[block] - 1
        if count < 0:
            raise InvariantError(f"block {block} was released, but nobody holds it (released twice?)")
        self._counts[block] = count
        self._num_holds -= 1
        self.num_shared -= count == 1
        if not count:
            flag = self._flags[block]
            if flag == FINDABLE:
                self._cached.add(block)
            elif not flag:
                self._free.append(block)
            else:
                self._put_aside(block, flag)

    def mark_findable(self, blocks: Sequence[int]) -> None:
        """An index now finds leased `blocks` by their content: when the last holder lets go, they will be cached."""
        counts, flags = self._counts, self._flags
        for block in blocks:
            if not counts[block]:
                raise InvariantError(f"block {block} became findable, but nobody holds it")
            if flags[block] < DISTRUSTED:
                flags[block] |= FINDABLE

    def forget(self, block: int) -> bool:
        """No index finds `block` any more.  True when it was cached, and is free now.  Does nothing to one that wasn't findable."""
        if not self._flags[block] & FINDABLE:
            return False
        was_cached = not self._counts[block]
        if was_cached:
            self._order_of(block).discard(block)
            self._free.append(block)
        self.num_protected -= self.is_protected(block)
        self._flags[block] &= DISTRUSTED
        return was_cached

    def protect(self, block: int) -> None:
        """Evict findable `block` only when nothing else is left.  Does nothing to a protected one.

        Raises InvariantError for one that can't be found.
        """
        if not self.is_findable(block):
            raise InvariantError(f"block {block} was to be protected, but nothing in it can be found")
        self._move(block, protect=True)

    def unprotect(self, block: int) -> None:
        """Does nothing to a block that isn't protected."""
        self._move(block, protect=False)

    def quarantine(self, block: int) -> None:
        """Take `block` out of use: at once, or when the last holder lets go.  The caller makes its index forget it."""
        self.forget(block)
        if self._counts[block]:
            self._flags[block] |= DISTRUSTED
        elif block not in self._quarantined:
            if block in self._offline:
                self._offline.remove(block)
            else:
                self._free.remove(block)  # a search, but faults are rare
            self._quarantined.add(block)

    def take_offline(self, num_blocks: int) -> list[int]:
        """Withdraw `num_blocks` available blocks, so that their memory can be given back.  Raises CapacityError as `allocate`."""
        blocks = self.allocate(num_blocks)
        for block in blocks:
            self._counts[block] = 0
        self._num_holds -= len(blocks)
        self._offline.update(blocks)
        return blocks

    def bring_online(self, blocks: Sequence[int]) -> None:
        """Offline `blocks` become free.  Raises InvariantError, and changes nothing, when one isn't offline."""
        if stray := [block for block in blocks if block not in self._offline]:
            raise InvariantError(f"blocks {stray} were to come online, but are not offline")
        self._offline.difference_update(blocks)
        self._free.extend(blocks)

    def check(self) -> None:
        """Raise InvariantError unless every block is in exactly one state (law 2: conserved).  O(num_blocks)."""
        counts, flags = self._counts, self._flags
        states: dict[str, Iterable[int]] = {
            "free": self._free,
            "cached": self._cached,
            "kept": self._kept,
            "quarantined": self._quarantined,
            "offline": self._offline,
            "leased": [block for block, count in enumerate(counts) if count],
        }
        seen: dict[int, str] = {}
        for state, blocks in states.items():
            for block in blocks:
                if block in seen:
                    raise InvariantError(f"block {block} is both {seen[block]} and {state}")
                seen[block] = state
        if len(seen) != self.num_blocks:
            lost = sorted(set(range(self.num_blocks)) - set(seen))
            raise InvariantError(f"{len(lost)} of {self.num_blocks} blocks are in no state: {lost[:8]}")
        for block, count in enumerate(counts):
            state, flag = seen[block], flags[block]
            if count < 0:
                raise InvariantError(f"block {block} has the reference count {count}")
            at_rest = "kept" if flag & PROTECTED else "cached"
            if (state in ("cached", "kept")) != bool(flag & FINDABLE and not count) or (
                state != at_rest and state in ("cached", "kept")
            ):
                raise InvariantError(f"block {block} is {state} with count {count} and flags {flag}")
            if flag & PROTECTED and not flag & FINDABLE:
                raise InvariantError(f"block {block} is protected, but nothing in it can be found")
            if flag and state in ("free", "quarantined", "offline"):
                raise InvariantError(f"block {block} is {state}, but has flags {flag}")
        tallies = {
            "held times": (self._num_holds, sum(counts)),
            "shared": (self.num_shared, sum(1 for count in counts if count > 1)),
            "protected": (self.num_protected, sum(1 for flag in flags if flag & PROTECTED)),
        }
        for name, (tally, true) in tallies.items():
            if tally != true:
                raise InvariantError(f"{true} {name}, but {tally} are counted")

    def _evict(self, num_blocks: int) -> list[int]:
        """Blocks whose content is given up, in no order's hands now."""
        cached = self._cached
        unprotected = min(num_blocks, len(cached))
        evicted = [cached.pop() for _ in range(unprotected)]
        for _ in range(num_blocks - unprotected):
            evicted.append(self._kept.pop())
            self.num_protected -= 1
        for block in evicted:
            self._flags[block] = 0
        self._on_evict(evicted)
        return evicted

    def _put_aside(self, block: int, flag: int) -> None:
        """The last holder let go of a block that is not plain."""
        if flag & DISTRUSTED:
            self._flags[block] = 0
            self._quarantined.add(block)
        else:  # only what can be found is protected
            self._kept.add(block)

    def _move(self, block: int, *, protect: bool) -> None:
        if self.is_protected(block) == protect:
            return
        resting = block in self._order_of(block)
        if resting:
            self._order_of(block).discard(block)
        self._flags[block] ^= PROTECTED
        self.num_protected += 1 if protect else -1
        if resting:
            self._order_of(block).add(block)

    def _order_of(self, block: int) -> EvictionOrder:
        return self._kept if self._flags[block] & PROTECTED else self._cached
