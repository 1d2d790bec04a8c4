"""`EvictionOrder`: which cached block gives way first.  By recency, or by what its loss would cost."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush


class EvictionOrder(ABC):
    """Blocks at rest: nobody holds them, and their content can still be found."""

    @abstractmethod
    def add(self, block: int) -> None:
        """`block`, which isn't here, comes to rest by itself."""

    @abstractmethod
    def rest(self, table: Sequence[int], resting: Sequence[int]) -> None:
        """A lease lets go of `table`, and nobody holds `resting` (a part of it, the last of the table first) any more."""

    @abstractmethod
    def discard(self, block: int) -> None:
        """`block` isn't at rest any more: somebody reads it again, or nothing finds it.  Does nothing to a block that isn't here."""

    @abstractmethod
    def pop(self) -> int:
        """Remove the block that gives way next, and return it.  Raises KeyError when none is at rest."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """As `pop` would give them."""

    @abstractmethod
    def __contains__(self, block: object) -> bool: ...

    def reuse(self, blocks: Sequence[int]) -> None:
        """One more lease reads `blocks`, at rest or not."""
        return None

    def renew(self, blocks: Sequence[int]) -> None:
        """`blocks`, which aren't here, will hold other content: what was known of them says nothing any more."""
        return None


class LeastRecentlyUsed(EvictionOrder):
    """Who rested longest goes first; of one lease the tail before the head, which more sequences begin with.  All O(1)."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def add(self, block: int) -> None:
        self._order[block] = None

    def rest(self, table: Sequence[int], resting: Sequence[int]) -> None:
        self._order.update(dict.fromkeys(resting))

    def discard(self, block: int) -> None:
        self._order.pop(block, None)

    def pop(self) -> int:
        return self._order.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order


class LeastCost(EvictionOrder):
    """Who is cheapest to lose goes first: GreedyDual (Young, Algorithmica 11, 1994), with reuse as in GDSF (Cherkasova 1998).

    A block's worth when it comes to rest is the clock plus (leases that read it) x (cost of computing it at its place in the table);
    the clock is the worth of whoever went last, so that what is never asked for again sinks below what comes anew.  O(log n).

    A chain is read from its beginning, so losing a block loses what follows: no block goes before those that followed it in a table.
    Every lease that lets go of a table lifts each block of it to the worth of those behind it, held or not.

    cost: of computing a token at the given position, relative to others.  block_size: tokens between places of a table.
    """

    def __init__(self, cost: Callable[[int], float], block_size: int) -> None:
        self._cost, self._block_size = cost, block_size
        self._costs: list[float] = []  # by place in a table
        self._clock = 0.0
        self._count = 0
        self._readers: dict[int, int] = {}
        self._worth: dict[int, float] = {}  # of all blocks with known content, at rest or not
        self._ticket: dict[int, int] = {}  # of those at rest: marks the one valid entry of the heap
        self._heap: list[tuple[float, int, int]] = []  # worth, ticket, block

    def add(self, block: int) -> None:
        # Without its table its place isn't known: it keeps the worth that it had.
        self._push(block, self._worth.setdefault(block, self._clock))

    def rest(self, table: Sequence[int], resting: Sequence[int]) -> None:
        costs, readers, worths, clock = self._costs, self._readers, self._worth, self._clock
        while len(costs) < len(table):
            costs.append(self._cost(len(costs) * self._block_size))
        at_rest = set(resting)
        behind = 0.0
        for place in range(len(table) - 1, -1, -1):
            block = table[place]
            behind = max(behind, worths.get(block, 0.0), clock + (1 + readers.get(block, 0)) * costs[place])
            worths[block] = behind
            if block in at_rest:
                self._push(block, behind)

    def discard(self, block: int) -> None:
        self._ticket.pop(block, None)

    def pop(self) -> int:
        heap, tickets = self._heap, self._ticket
        while heap:
            worth, ticket, block = heappop(heap)
            if tickets.get(block) == ticket:
                del tickets[block]
                self._clock = max(self._clock, worth)
                return block
        raise KeyError("no block is at rest")

    def reuse(self, blocks: Sequence[int]) -> None:
        readers = self._readers
        for block in blocks:
            readers[block] = readers.get(block, 0) + 1

    def renew(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._readers.pop(block, None)
            self._worth.pop(block, None)

    def __len__(self) -> int:
        return len(self._ticket)

    def __iter__(self) -> Iterator[int]:
        return iter([block for _, ticket, block in sorted(self._heap) if self._ticket.get(block) == ticket])

    def __contains__(self, block: object) -> bool:
        return block in self._ticket

    def _push(self, block: int, worth: float) -> None:
        self._count += 1  # among equals, who came to rest first
        self._ticket[block] = self._count
        heappush(self._heap, (worth, self._count, block))
        if len(self._heap) > 64 + 2 * len(self._ticket):  # mostly entries of blocks that were read again
            self._heap = [entry for entry in self._heap if self._ticket.get(entry[2]) == entry[1]]
            heapify(self._heap)
