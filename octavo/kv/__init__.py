"""Where every token's K and V live: ids, keys and counts, never bytes.  Imports no torch.

Read in this order: `manager` (the door), `lease`, `paged`, `block_pool`, `prefix_index`; then the baseline: `reserved`, `buddy`.
"""

from octavo.kv.block_pool import BlockPool
from octavo.kv.layouts import make_kv_cache
from octavo.kv.lease import Lease
from octavo.kv.manager import KVCacheManager
from octavo.kv.paged import PagedKVCache
from octavo.kv.prefix_index import NoIndex, PrefixIndex, PrefixMatch
from octavo.kv.reserved import ReservedKVCache

__all__ = [
    "BlockPool",
    "KVCacheManager",
    "Lease",
    "NoIndex",
    "PagedKVCache",
    "PrefixIndex",
    "PrefixMatch",
    "ReservedKVCache",
    "make_kv_cache",
]
