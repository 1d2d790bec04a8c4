"""`BlockPool`: which block is in whose hands.  Ids and counts only; bytes live elsewhere."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from octavo.core.errors import CapacityError, ConfigError, InvariantError


def _ignore_eviction(block: int) -> None:
    """Nobody keeps a record of what a block holds."""


class BlockPool:
    """`num_blocks` blocks with ids 0, 1, ... and a reference count each.

    A block is in exactly one state:
        leased: its count is above 0 (a block that is also findable counts as leased);
        cached: count 0, but its content can still be found: it waits in the eviction order;
        free: count 0 and nothing to find;
        quarantined: taken out of use because its content can't be trusted;
        offline: not backed by memory at present.
    Free blocks are taken before cached ones are evicted, the last freed first (its memory is warm in the processor's caches).
    Every method is O(1) per block named, whatever the size of the pool.

    on_evict(block): called when a cached block is about to be taken for other content.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] = _ignore_eviction) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks can hold nothing; raise num_blocks or kv_cache_memory_bytes")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._counts = [0] * num_blocks
        self._findable = bytearray(num_blocks)
        self._distrusted = bytearray(num_blocks)  # leased, and to be quarantined when the last holder lets go
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: its end is taken next
        self._cached: OrderedDict[int, None] = OrderedDict()  # its front is evicted next
        self._quarantined: set[int] = set()
        self._offline: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give now: free ones and cached ones."""
        return len(self._free) + len(self._cached)

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

    def count(self, block: int) -> int:
        """How many leases hold `block`."""
        return self._counts[block]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` blocks, each with count 1.  Raises CapacityError (and takes none) when fewer are available."""
        if num_blocks > self.num_available:
            raise CapacityError(
                f"{num_blocks} blocks were asked for; {self.num_free} are free and {self.num_cached} cached of {self.num_blocks}; "
                "raise num_blocks or kv_cache_memory_bytes"
            )
        taken = []
        for _ in range(num_blocks):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._findable[block] = 0
                self._on_evict(block)
            self._counts[block] = 1
            taken.append(block)
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """One more holder for each of `blocks`, which are leased or cached (a cached one leaves the eviction order).

        Raises InvariantError, and changes nothing, when one of them is in another state.
        """
        for block in blocks:
            if not self._counts[block] and block not in self._cached:
                raise InvariantError(f"block {block} was to be shared, but nobody holds it and nothing in it can be found")
        for block in blocks:
            if not self._counts[block]:
                del self._cached[block]
            self._counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder of each of `blocks` (in the order of its table) lets go; the tail goes first.

        The tail of a sequence is the least likely to be found again, so it is the first to be evicted.
        Raises InvariantError, and changes nothing, when a block is named twice or held by nobody.
        """
        if len(set(blocks)) != len(blocks):
            raise InvariantError(f"a block was released twice in one call: {list(blocks)}")
        for block in blocks:
            if not self._counts[block]:
                raise InvariantError(f"block {block} was released, but nobody holds it (released twice?)")
        for block in reversed(blocks):
            self._counts[block] -= 1
            if not self._counts[block]:
                self._put_back(block)

    def mark_findable(self, block: int) -> None:
        """An index now finds leased `block` by its content: when the last holder lets go, it will be cached."""
        if not self._counts[block]:
            raise InvariantError(f"block {block} became findable, but nobody holds it")
        self._findable[block] = not self._distrusted[block]

    def forget(self, block: int) -> None:
        """No index finds `block` any more: a cached block becomes free.  Does nothing to a block that wasn't findable."""
        self._findable[block] = 0
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def quarantine(self, block: int) -> None:
        """Take `block` out of use: at once, or when the last holder lets go.  The caller makes its index forget it."""
        self._findable[block] = 0
        if self._counts[block]:
            self._distrusted[block] = 1
        elif block not in self._quarantined:
            if block in self._cached:
                del self._cached[block]
            elif block in self._offline:
                self._offline.remove(block)
            else:
                self._free.remove(block)  # a search, but faults are rare
            self._quarantined.add(block)

    def take_offline(self, num_blocks: int) -> list[int]:
        """Withdraw `num_blocks` available blocks, so that their memory can be given back.  Raises CapacityError as `allocate`."""
        blocks = self.allocate(num_blocks)
        for block in blocks:
            self._counts[block] = 0
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
        states = {
            "free": self._free,
            "cached": self._cached,
            "quarantined": self._quarantined,
            "offline": self._offline,
            "leased": [block for block, count in enumerate(self._counts) if count],
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
        for block, count in enumerate(self._counts):
            if count < 0:
                raise InvariantError(f"block {block} has the reference count {count}")
            if (seen[block] == "cached") != bool(self._findable[block] and not count):
                raise InvariantError(f"block {block} is {seen[block]} with count {count} and findable={self._findable[block]}")

    def _put_back(self, block: int) -> None:
        if self._distrusted[block]:
            self._distrusted[block] = 0
            self._quarantined.add(block)
        elif self._findable[block]:
            self._cached[block] = None
        else:
            self._free.append(block)
