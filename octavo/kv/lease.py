"""`Lease`: everything that one sequence holds of the memory."""

from dataclasses import dataclass, field

from octavo.kv.prefix_index import Cursor


@dataclass(slots=True, eq=False)
class Lease:
    """Made, changed and released by a KVCacheManager alone; everybody else only reads it.

    blocks: the block table: `blocks[i]` holds the tokens at positions `[i * block_size, (i + 1) * block_size)`.
    room: tokens that `blocks` hold.
    final_tokens: at most this many tokens' K and V will ever be written.
    num_cached: tokens that were there when the lease was opened.
    num_written: tokens whose K and V are there now (the cached ones included).
    cursor: where this sequence's chain of full blocks stands in the prefix index.
    is_open: False after release.  is_needed: False once the sequence has ended, though its memory is kept.
    """

    final_tokens: int
    blocks: list[int] = field(default_factory=list)
    room: int = 0
    num_cached: int = 0
    num_written: int = 0
    cursor: Cursor = None
    is_open: bool = True
    is_needed: bool = True
