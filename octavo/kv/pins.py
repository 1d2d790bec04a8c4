"""`Pins`: blocks that are to be evicted last, for a while."""

from collections import Counter
from collections.abc import Callable, Sequence

from octavo.kv.manager import Pin


class Pins:
    """Named sets of blocks, each until its time.  A block may be in several.  A pin ends when somebody looks (lazily).

    clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pins: dict[str, tuple[dict[int, None], float | None]] = {}  # blocks in order, and the time when it ends
        self._counts: Counter[int] = Counter()

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __bool__(self) -> bool:
        return bool(self._pins)

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    def kept_beside(self, name: str) -> set[int]:
        """The blocks that pins of other names hold."""
        return {block for other, (blocks, _) in self._pins.items() if other != name for block in blocks}

    def set(self, name: str, blocks: Sequence[int], ttl: float | None) -> None:
        """A pin of that name must have been removed before."""
        self._pins[name] = (dict.fromkeys(blocks), None if ttl is None else self._clock() + ttl)
        self._counts.update(list(self._pins[name][0]))

    def remove(self, name: str) -> list[int] | None:
        """The blocks that no pin holds any more, the last first; None when there was no such pin."""
        if name not in self._pins:
            return None
        blocks, _ = self._pins.pop(name)
        return [block for block in reversed(blocks) if self._let_go(block)]

    def expire(self) -> list[int]:
        """End what has come to its time: the blocks that no pin holds any more."""
        if not self._pins:
            return []
        now = self._clock()
        ended = [name for name, (_, end) in self._pins.items() if end is not None and end <= now]
        return [block for name in ended for block in self.remove(name) or ()]

    def lose(self, block: int) -> None:
        """The content of `block` is gone."""
        if block in self._counts:
            for blocks, _ in self._pins.values():
                blocks.pop(block, None)
            del self._counts[block]

    def as_they_stand(self, block_size: int) -> list[Pin]:
        """By name; call `expire` before."""
        now = self._clock()
        return [
            Pin(name, len(blocks) * block_size, None if end is None else end - now)
            for name, (blocks, end) in sorted(self._pins.items())
        ]

    def _let_go(self, block: int) -> bool:
        self._counts[block] -= 1
        if self._counts[block]:
            return False
        del self._counts[block]
        return True
