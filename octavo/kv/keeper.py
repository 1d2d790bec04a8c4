"""`Keeper`: which blocks are evicted last, because somebody pinned or published what they hold."""

from collections.abc import Callable, Sequence

from octavo.core.errors import CapacityError, ConfigError
from octavo.kv.block_pool import BlockPool
from octavo.kv.pins import Pins
from octavo.kv.publications import Publication, Publications


class Keeper:
    """Pins and publications, and the one bound on what they keep together.

    They are kept until nothing else is left to evict, and given up before anybody is preempted: a running request outlives them.

    share: of the pool that pins and publications may cover together.  clock: seconds, for pins that end.
    Raises ConfigError for a share outside 0 to 1.
    """

    def __init__(self, pool: BlockPool, block_size: int, share: float, clock: Callable[[], float]) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"pin_share={share} must be from 0 (nothing can be pinned) to 1 (all of the pool)")
        self._pool = pool
        self._block_size = block_size
        self._share = share
        self.pins = Pins(clock)
        self.publications = Publications(block_size)

    def __contains__(self, block: int) -> bool:
        return block in self.pins or block in self.publications

    def publish(self, publication: Publication) -> None:
        """Raises CapacityError, and changes nothing, when too much would be kept."""
        self._refuse_too_much(f"the publication {publication.name!r}", publication.num_blocks, self.pins.num_blocks)
        self.publications.add(publication)

    def published(self, publication: Publication, blocks: Sequence[int]) -> None:
        """Findable `blocks` hold a part of its content now."""
        for block in blocks:
            self.publications.hold(publication, block)
            self._pool.protect(block)

    def pin(self, name: str, blocks: Sequence[int], ttl: float | None) -> None:
        """Keep findable `blocks`; those of publications are kept already.  A pin of that name is replaced.

        Raises CapacityError, and changes nothing, when too much would be kept.
        """
        blocks = [block for block in blocks if block not in self.publications]
        others = self.pins.kept_beside(name)
        self._refuse_too_much(f"the pin {name!r}", len(set(blocks) - others), len(others))
        before = self.pins.remove(name) or []
        self.pins.set(name, blocks, ttl)
        for block in blocks:
            self._pool.protect(block)
        self._let_go(before)

    def unpin(self, name: str) -> bool:
        blocks = self.pins.remove(name)
        self._let_go(blocks or [])
        return blocks is not None

    def expire(self) -> None:
        """End the pins whose time has come."""
        self._let_go(self.pins.expire())

    def lose(self, block: int) -> None:
        """The content of `block` is gone."""
        self.pins.lose(block)
        self.publications.lose(block)

    def _let_go(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block not in self:
                self._pool.unprotect(block)

    def _refuse_too_much(self, what: str, more: int, num_pinned: int) -> None:
        total = self._pool.num_in_service
        published, allowed = self.publications.num_blocks, int(self._share * total)
        if more + num_pinned + published > allowed:
            size = self._block_size
            raise CapacityError(
                f"{what} would keep {more} blocks of {size} tokens; {num_pinned} are pinned and {published} published already, and "
                f"together they may cover {allowed} of {total} (pin_share={self._share}); unpin or unpublish something, "
                "or raise pin_share, num_blocks or kv_cache_memory_bytes"
            )
