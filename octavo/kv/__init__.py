"""Where every token's K and V live: ids, keys and counts, never bytes.  Imports no torch.

Read in this order: `manager` (the door), `lease`, `paged`, `block_pool`, `prefix_index`.  Then what stays when leases end: `content`,
`eviction`, `quotas`, `keeper` (with `pins` and `publications`); how misses are explained: `owners`, `misses`, `reasons`; the indexes:
`hash_index`, `radix_index`, `heads`; and the baseline: `reserved`, `buddy`.
"""

from octavo.kv.block_pool import BlockPool
from octavo.kv.eviction import EvictionOrder, LeastCost, LeastRecentlyUsed
from octavo.kv.layouts import make_kv_cache
from octavo.kv.lease import Lease, PrefixMatch
from octavo.kv.manager import KVCacheManager, Miss, Pin
from octavo.kv.paged import PagedKVCache
from octavo.kv.prefix_index import IndexMatch, NoIndex, PrefixIndex
from octavo.kv.reserved import ReservedKVCache

__all__ = [
    "BlockPool",
    "EvictionOrder",
    "IndexMatch",
    "KVCacheManager",
    "Lease",
    "LeastCost",
    "LeastRecentlyUsed",
    "Miss",
    "NoIndex",
    "PagedKVCache",
    "Pin",
    "PrefixIndex",
    "PrefixMatch",
    "ReservedKVCache",
    "make_kv_cache",
]
