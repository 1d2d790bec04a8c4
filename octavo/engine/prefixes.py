"""`Prefixes`: what an operator says about the memory of prefixes: publish, pin, forget."""

from array import array
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import ConfigError, InvalidRequestError
from octavo.core.outputs import RequestOutput
from octavo.kv.manager import KVCacheManager, Pin


class Prefixes:
    """Acts on one engine's memory between two of its steps (`lock`).  The content itself comes from ordinary requests.

    cache_key: the engine's own, for the default tenant.
    """

    def __init__(self, manager: KVCacheManager, cache_key: CacheKey, lock: AbstractContextManager[object]) -> None:
        self._manager = manager
        self._cache_key = cache_key
        self._lock = lock
        self._computed_by: dict[str, str] = {}  # of each publication's first request, its id and the publication's name

    def publish(self, name: str, tokens: Sequence[int], tenants: Collection[str] | None) -> int:
        """Let `tenants` (None: all) read the full blocks of `tokens`, once a request with `published=name` has computed them.

        How many tokens these are.

        Raises InvalidRequestError for a name in use and for less than a block, CapacityError when pins and publications would cover
        more of the pool than `pin_share`, ConfigError where nothing is ever found.
        """
        self._refuse_without_memory()
        size = self._manager.block_size
        whole = len(tokens) // size * size
        if not whole:
            raise InvalidRequestError(
                f"{len(tokens)} tokens don't fill a block of {size}, and only full blocks can be published; send more"
            )
        key = replace(self._cache_key, namespace=PublishedNamespace(name))
        with self._lock:
            self._manager.publish(name, key, array("i", tokens[:whole]), None if tenants is None else frozenset(tenants))
        return whole

    def unpublish(self, name: str) -> bool:
        """Nobody finds it any more; who reads it now goes on.  False when nothing has that name."""
        with self._lock:
            self._computed_by = {request_id: other for request_id, other in self._computed_by.items() if other != name}
            return self._manager.unpublish(name)

    def computed_by(self, request_id: str, name: str) -> None:
        """From now on the publication falls when that request fails or is aborted.

        Even when it has ended here: who aborts it then has not heard of that, and believes that nothing is published.
        """
        self._computed_by[request_id] = name

    def note_ended(self, outputs: Iterable[RequestOutput]) -> None:
        """What a step gave: a publication whose content could not be computed is none."""
        for output in outputs if self._computed_by else ():
            if any(sample.finish_reason == "error" for sample in output.outputs):
                self.note_aborted(output.request_id)

    def note_aborted(self, request_id: str) -> None:
        """That request was not to be computed: nor is the publication that depends on it."""
        if (name := self._computed_by.get(request_id)) is not None:
            self.unpublish(name)

    def pin(self, name: str, tokens: Sequence[int], tenant: str, cache_salt: str, ttl: float | None) -> int:
        """Keep what one namespace has in memory of `tokens` longest, for `ttl` seconds (None: until `unpin`).

        How many tokens that are.

        Raises CapacityError and ConfigError as `publish`.
        """
        self._refuse_without_memory()
        key = replace(self._cache_key, namespace=TenantNamespace(tenant, cache_salt))
        with self._lock:
            return self._manager.pin(name, key, array("i", tokens), ttl)

    def unpin(self, name: str) -> bool:
        """False when there is no pin of that name (any more)."""
        with self._lock:
            return self._manager.unpin(name)

    def pins(self) -> list[Pin]:
        """Those that have not expired."""
        with self._lock:
            return self._manager.pins()

    def reset(self) -> int:
        """Forget everything that can be found; running requests go on.  How many blocks became free."""
        with self._lock:
            return self._manager.reset_cache()

    def _refuse_without_memory(self) -> None:
        if not self._manager.can_find:
            raise ConfigError(
                "what a request computed is not found again here, so nothing can be published or pinned; "
                "set enable_prefix_caching=True and kv_layout='paged'"
            )
