"""`Prefixes`: what an operator says about the memory of prefixes: publish, pin, forget."""

from array import array
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import InvalidRequestError
from octavo.core.params import SamplingParams
from octavo.kv.manager import KVCacheManager, Pin

# Computes a prompt, and one token that nobody asked for.
COMPUTE_ONLY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


class Prefixes:
    """Acts on one engine's memory between two of its steps (`lock`).  The content itself comes from ordinary requests.

    cache_key: the engine's own, for the default tenant.
    """

    def __init__(self, manager: KVCacheManager, cache_key: CacheKey, lock: AbstractContextManager[object]) -> None:
        self._manager = manager
        self._cache_key = cache_key
        self._lock = lock

    def publish(self, name: str, tokens: Sequence[int], tenants: Collection[str] | None) -> int:
        """Let `tenants` (None: all) read the full blocks of `tokens`, once a request with `published=name` has computed them: how many tokens.

        Raises InvalidRequestError for a name in use and for less than a block, CapacityError when pins and publications would cover
        more of the pool than `pin_share`.
        """
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
            return self._manager.unpublish(name)

    def pin(self, name: str, tokens: Sequence[int], tenant: str, cache_salt: str, ttl: float | None) -> int:
        """Keep what one namespace has in memory of `tokens` longest, for `ttl` seconds (None: until `unpin`): how many tokens that are.

        Raises CapacityError as `publish`.
        """
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
