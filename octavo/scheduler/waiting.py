"""`WaitingQueue`: sequences that are not running, in the one order that also chooses victims."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.scheduler.sequence import Sequence


def by_order(sequence: Sequence) -> tuple[int, int, int]:
    """The key of every sorted list of sequences."""
    return sequence.order


def insert_in_order(sequences: list[Sequence], sequence: Sequence) -> None:
    """Put `sequence` in its place among sorted `sequences`."""
    insort(sequences, sequence, key=by_order)


def remove_in_order(sequences: list[Sequence], sequence: Sequence) -> None:
    """Remove `sequence`, which must be there.  A binary search, then a move of pointers."""
    del sequences[bisect_left(sequences, sequence.order, key=by_order)]


class WaitingQueue:
    """By priority (lower first), then by arrival.

    A preempted sequence keeps its age, so it stands ahead of every fresh one of equal priority, save those that it overtook itself.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence:
        return self._sequences[0]

    def snapshot(self) -> list[Sequence]:
        """All of them, in order; may be walked while some are removed."""
        return self._sequences.copy()

    def behind(self, sequence: Sequence, count: int) -> list[Sequence]:
        """The next `count` after `sequence`, which must be there."""
        place = bisect_left(self._sequences, sequence.order, key=by_order)
        return self._sequences[place + 1 : place + 1 + count]

    def add(self, *sequences: Sequence) -> None:
        """All of them, or none when it raises (TypeError, for a priority that can't be compared)."""
        together = self._sequences.copy()
        for sequence in sequences:
            insert_in_order(together, sequence)
        self._sequences = together

    def remove(self, sequence: Sequence) -> None:
        remove_in_order(self._sequences, sequence)
