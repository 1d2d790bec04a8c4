"""`PendingCopies`: blocks that are read by a copy which the next step will make."""

from octavo.kv.block_pool import BlockPool
from octavo.kv.lease import Lease


class PendingCopies:
    """Each pending copy holds its source, so that nobody gets it meanwhile.

    A copy needs no more of its source than the first tokens of it, so another may already write behind these: copies of a step are
    made before anything is written in it.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._sources: dict[int, tuple[int, int]] = {}  # block -> how many copies, tokens that they need at most

    def add(self, lease: Lease, source: int, destination: int, num_tokens: int) -> None:
        """The first `num_tokens` tokens of `source` are to be in `destination`, too.  Takes over one hold on `source`."""
        count, most = self._sources.get(source, (0, 0))
        self._sources[source] = count + 1, max(most, num_tokens)
        lease.copies.append((source, destination))

    def end(self, lease: Lease) -> None:
        """The copies of `lease` were made, or nobody wants them any more."""
        for source, _ in lease.copies:
            count, most = self._sources.pop(source)
            if count > 1:
                self._sources[source] = count - 1, most
            self._pool.release_one(source)
        lease.copies.clear()

    def count(self, block: int) -> int:
        """How many pending copies hold `block`."""
        return self._sources[block][0] if block in self._sources else 0

    def holders_behind(self, block: int, fill: int) -> int:
        """How many hold `block` and mind what is written behind its first `fill` tokens."""
        count, most = self._sources.get(block, (0, 0))
        return self._pool.count(block) - (count if most <= fill else 0)
