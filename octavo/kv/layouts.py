"""Which memory stands behind the door, by the names of the engine's settings."""

from octavo.core.errors import ConfigError
from octavo.kv.manager import KVCacheManager
from octavo.kv.paged import PagedKVCache
from octavo.kv.prefix_index import NoIndex, PrefixIndex
from octavo.kv.reserved import ReservedKVCache


def make_kv_cache(
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    kv_layout: str = "paged",
    reserve: str = "max",
    index: PrefixIndex | None = None,
) -> KVCacheManager:
    """A KVCacheManager over `num_blocks` blocks of `block_size` tokens.

    kv_layout: "paged", or "reserved" with `reserve` ("max", "pow2" or "oracle"), which shares nothing and uses no index.
    index: finds equal prefixes ("paged" only); None finds nothing.
    Raises ConfigError for an unknown name, and for a pool too small for its layout.
    """
    if kv_layout == "paged":
        return PagedKVCache(num_blocks, block_size, index or NoIndex())
    if kv_layout == "reserved":
        return ReservedKVCache(num_blocks, block_size, max_model_len, reserve)
    raise ConfigError(f"kv_layout={kv_layout!r} is not one of paged, reserved")
