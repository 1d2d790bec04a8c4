"""`Lease`: everything that one sequence holds of the memory.  `PrefixMatch`: what it can begin with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from octavo.core.cache_key import CacheKey
from octavo.kv.prefix_index import Cursor, Tokens

if TYPE_CHECKING:
    from octavo.kv.owners import Owner

# What becomes of a head: copied into a fresh block; taken over as it is; taken over, and its entry shortened to what is used; not
# used, because it is too short to be worth a copy, or because there is no room for one.  None: there is no head.
HeadUse = Literal["copy", "take", "shorten", "not worth", "no room"]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest prefix of some tokens that needs no computing, as `KVCacheManager.match` and `fit` give it.

    Valid until the next call that mutates the memory: open a lease on it before that, or match again.

    key, tokens: whose memory was asked, and for what.  limit: how many tokens might be read.
    blocks: ids of the full blocks, in order, shared as they are.  num_published: tokens in those of them that are published.
    num_tokens: all tokens found, the head included (unless it is not used).
    head: a block that goes on where `blocks` end, in its first `head_tokens` tokens; head_fill: how many can be found in it.
    head_use: what `fit` decided; `match` itself says None, or "not worth".
    cursor: where the tenant's own chain stands behind `blocks`.
    """

    key: CacheKey
    tokens: Tokens = field(repr=False)
    limit: int
    blocks: tuple[int, ...] = ()
    num_tokens: int = 0
    num_published: int = 0
    cursor: Cursor = None
    head: int | None = None
    head_tokens: int = 0
    head_fill: int = 0
    head_use: HeadUse | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """Made, changed and released by a KVCacheManager alone; everybody else only reads it (and takes note of `changed_from`).

    key: under which its blocks are found.
    blocks: the block table: `blocks[i]` holds the tokens at positions `[i * block_size, (i + 1) * block_size)`.
    room: tokens that `blocks` hold.
    final_tokens: at most this many tokens' K and V will ever be written.
    num_cached: tokens that were there when the lease was opened (forked ones included).
    num_written: tokens whose K and V are there now (the cached ones included, those that a pending copy brings as well).
    copies: pending (source block, destination block) pairs: to be done before anything of this lease is written; `commit` ends them.
    changed_from: index of the first entry of `blocks` that the runner may not know.  The scheduler sets it to `len(blocks)` when the
        runner has them; a copy lowers it again.
    shares_tail: whether the block that is written next may be somebody else's, too: then `grow` must be asked before any write.
    owner, cursor, num_inserted: where this sequence's chain of full blocks stands in the prefix index, and how many blocks that is
        (-1: it must be looked for).
    tokens: as `match` or the last `commit` gave them; prompt_len: how many of them are the prompt.
    is_findable: whether its blocks may become findable.
    is_open: False after release.  is_needed: False once the sequence has ended, though its memory is kept.
    """

    key: CacheKey
    final_tokens: int
    blocks: list[int] = field(default_factory=list)
    room: int = 0
    num_cached: int = 0
    num_written: int = 0
    copies: list[tuple[int, int]] = field(default_factory=list)
    changed_from: int = 0
    shares_tail: bool = False
    owner: Owner | None = None
    cursor: Cursor = None
    num_inserted: int = 0
    tokens: Tokens | None = None
    prompt_len: int = 0
    is_findable: bool = True
    is_open: bool = True
    is_needed: bool = True
