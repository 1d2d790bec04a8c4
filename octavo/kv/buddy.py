"""`BuddyAllocator`: contiguous runs of blocks, split and merged by halves."""

from octavo.core.errors import ConfigError, InvariantError


class BuddyAllocator:
    """Runs of 2**k blocks (Knowlton 1965; Knuth, TAOCP volume 1, section 2.5), as the systems before paging used them.

    A pool whose size is no power of two begins as the free runs of its binary digits, the largest first.  A run's buddy lies at
    `start XOR size`; two free buddies become one run.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks can hold nothing; raise num_blocks or kv_cache_memory_bytes")
        self.num_blocks = num_blocks
        self._free: list[set[int]] = [set() for _ in range(num_blocks.bit_length())]  # by order: starts of free runs
        self._taken: dict[int, int] = {}  # start -> order
        start = 0
        for order in range(num_blocks.bit_length() - 1, -1, -1):
            if num_blocks >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    @property
    def largest_run(self) -> int:
        """Blocks of the longest run that an empty pool can give."""
        return 1 << (self.num_blocks.bit_length() - 1)

    @property
    def num_taken(self) -> int:
        return sum(1 << order for order in self._taken.values())

    def num_free_in_runs_of(self, num_blocks: int) -> int:
        """Blocks in free runs that are long enough for `num_blocks`."""
        return sum(len(starts) << order for order, starts in enumerate(self._free) if 1 << order >= num_blocks)

    def can_allocate(self, num_blocks: int) -> bool:
        return any(self._free[order_of(num_blocks) :])

    def run_size(self, start: int) -> int:
        """Blocks of the taken run at `start`."""
        return 1 << self._taken[start]

    def allocate(self, num_blocks: int) -> int | None:
        """Take the lowest run among the shortest that hold `num_blocks` blocks: its first block, or None when there is none."""
        wanted = order_of(num_blocks)
        order = next((k for k in range(wanted, len(self._free)) if self._free[k]), None)
        if order is None:
            return None
        start = min(self._free[order])
        self._free[order].remove(start)
        while order > wanted:  # keep the lower half, free the upper
            order -= 1
            self._free[order].add(start + (1 << order))
        self._taken[start] = wanted
        return start

    def free(self, start: int) -> None:
        """Give the run at `start` back, and merge buddies.  Raises InvariantError, and changes nothing, when it isn't taken."""
        order = self._taken.pop(start, None)
        if order is None:
            raise InvariantError(f"the run at block {start} was freed, but nobody holds it (freed twice?)")
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)

    def check(self) -> None:
        """Raise InvariantError unless the free and taken runs tile the pool, and no two free buddies lie unmerged."""
        runs = [(start, order) for order, starts in enumerate(self._free) for start in starts] + list(self._taken.items())
        end = 0
        for start, order in sorted(runs):
            if start != end:
                raise InvariantError(f"blocks {end} to {start} are in no run or in two")
            end = start + (1 << order)
        if end != self.num_blocks:
            raise InvariantError(f"the runs end at block {end} of {self.num_blocks}")
        for order, starts in enumerate(self._free):
            if any(start ^ (1 << order) in starts for start in starts):
                raise InvariantError(f"two free buddies of {1 << order} blocks were not merged")


def order_of(num_blocks: int) -> int:
    """The k of the shortest run 2**k that holds `num_blocks` blocks."""
    return max(num_blocks - 1, 0).bit_length()
