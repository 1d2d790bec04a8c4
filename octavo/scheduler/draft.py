"""`Draft`: a plan while it is built."""

from octavo.core.plan import Chunk, SequenceStart
from octavo.kv.lease import Lease
from octavo.scheduler.sequence import Sequence


class Draft:
    """What the plan has so far.  budget: prompt tokens that it still takes."""

    __slots__ = ("budget", "chunks", "started")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: list[Chunk] = []
        self.started: list[SequenceStart] = []

    def add(self, sequence: Sequence, end: int, lease: Lease) -> None:
        """Compute `sequence` up to `end`.  Mutates the draft alone."""
        if not sequence.is_known:
            self.started.append(sequence.start())
        self.chunks.append(sequence.chunk_to(end, lease))
