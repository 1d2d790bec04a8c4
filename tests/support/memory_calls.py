"""Short calls on a paged memory of four-token blocks, for tests of its rules; what changes it is checked at once."""

from array import array
from dataclasses import replace

from plain_index import PlainIndex

from octavo.core.cache_key import CacheKey, TenantNamespace
from octavo.kv import Lease, PagedKVCache

KEY = CacheKey(weights="w", namespace=TenantNamespace("a"))
OTHER = replace(KEY, namespace=TenantNamespace("b"))


def make(num_blocks: int = 10, **settings: object) -> PagedKVCache:
    return PagedKVCache(num_blocks, 4, PlainIndex(4), **settings)  # type: ignore[arg-type]


def ids(length: int, first: int = 0) -> array:
    return array("i", range(first, first + length))


def begin(manager: PagedKVCache, tokens: array, key: CacheKey = KEY, final: int | None = None) -> Lease:
    final = len(tokens) if final is None else final
    match = manager.fit(manager.match(key, tokens, len(tokens)), len(tokens), len(tokens), final, 0)
    assert match is not None
    lease = manager.open(match, len(tokens), final)
    assert lease is not None
    return lease


def advance(manager: PagedKVCache, lease: Lease, tokens: array, end: int | None = None) -> None:
    end = len(tokens) if end is None else end
    assert manager.grow(lease, end)
    manager.commit(lease, tokens, end)
    manager.check()


def serve(manager: PagedKVCache, tokens: array, key: CacheKey = KEY) -> list[int]:
    """A sequence from its beginning to its end: the blocks that it had."""
    lease = begin(manager, tokens, key)
    advance(manager, lease, tokens)
    blocks = list(lease.blocks)
    manager.release(lease)
    manager.check()
    return blocks


def found(manager: PagedKVCache, tokens: array, key: CacheKey = KEY) -> int:
    return manager.match(key, tokens, len(tokens)).num_tokens


def why(manager: PagedKVCache, tokens: array, key: CacheKey = KEY, limit: int | None = None) -> tuple[str | None, str | None]:
    return tuple(manager.why_missed(key, tokens, manager.match(key, tokens, len(tokens) if limit is None else limit)))
