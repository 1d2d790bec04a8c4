"""Which memory stands behind the door, by the names of the engine's settings."""

import time
from collections.abc import Callable, Mapping

from octavo.core.errors import ConfigError
from octavo.kv.hash_index import HashIndex
from octavo.kv.manager import KVCacheManager
from octavo.kv.paged import PagedKVCache, same_cost
from octavo.kv.prefix_index import NoIndex, PrefixIndex
from octavo.kv.radix_index import RadixIndex
from octavo.kv.reserved import ReservedKVCache


def make_kv_cache(
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    kv_layout: str = "paged",
    reserve: str = "max",
    prefix_index: str | PrefixIndex | None = None,
    eviction: str = "lru",
    recompute_cost: Callable[[int], float] = same_cost,
    quotas: Mapping[str, int] | None = None,
    default_quota: int | None = None,
    pin_share: float = 0.5,
    copy_worth: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> KVCacheManager:
    """A KVCacheManager over `num_blocks` blocks of `block_size` tokens.

    kv_layout: "paged", or "reserved" with `reserve` ("max", "pow2" or "oracle"), which shares nothing and heeds nothing below.
    prefix_index: finds equal prefixes: "hash", "radix", or one made by the caller; None finds nothing.
    eviction to clock: see PagedKVCache.
    Raises ConfigError for an unknown name, and for a pool too small for its layout.
    """
    if kv_layout == "reserved":
        return ReservedKVCache(num_blocks, block_size, max_model_len, reserve)
    if kv_layout != "paged":
        raise ConfigError(f"kv_layout={kv_layout!r} is not one of paged, reserved")
    return PagedKVCache(
        num_blocks,
        block_size,
        make_prefix_index(prefix_index, block_size),
        eviction=eviction,
        recompute_cost=recompute_cost,
        quotas=quotas,
        default_quota=default_quota,
        pin_share=pin_share,
        copy_worth=copy_worth,
        clock=clock,
    )


def make_prefix_index(name: str | PrefixIndex | None, block_size: int) -> PrefixIndex:
    """An index by its name; one that was made already as it is.  Raises ConfigError for an unknown name."""
    if isinstance(name, PrefixIndex):
        return name
    if name is None:
        return NoIndex()
    if name == "hash":
        return HashIndex(block_size)
    if name == "radix":
        return RadixIndex(block_size)
    raise ConfigError(f"prefix_index={name!r} is not one of hash, radix")
