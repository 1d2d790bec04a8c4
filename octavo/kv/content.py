"""`Content`: what cached and leased blocks hold for whoever asks; how it becomes findable, and how it is given up."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from octavo.core.cache_key import CacheKey
from octavo.kv.block_pool import BlockPool
from octavo.kv.eviction import EvictionOrder
from octavo.kv.keeper import Keeper
from octavo.kv.lease import Lease, PrefixMatch
from octavo.kv.manager import Miss
from octavo.kv.misses import MissMemory
from octavo.kv.owners import Contents, Owner, Owners, chained
from octavo.kv.prefix_index import Cursor, PrefixIndex, Tokens
from octavo.kv.quotas import Account, Accounts, QuotaOrder
from octavo.kv.reasons import explain


class Content:
    """Keeps pool, index, owners, pins, publications, quotas and the memory of misses in step: a block is findable in all or in none.

    evictions: cached blocks that lost their content, by cause.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        index: PrefixIndex,
        order: EvictionOrder,
        accounts: Accounts,
        pin_share: float,
        clock: Callable[[], float],
    ) -> None:
        self._block_size = block_size
        self._index = index
        self._quotas = QuotaOrder(order, self._account_of) if accounts.are_kept else None
        self._owners = Owners(accounts)
        self._contents = Contents(num_blocks)
        self._misses = MissMemory()
        self.pool = BlockPool(num_blocks, self._on_evict, order if self._quotas is None else self._quotas)
        self.keeper = Keeper(self.pool, block_size, pin_share, clock)
        self.evictions = {"capacity": 0, "quota": 0, "reset": 0, "unpublished": 0}

    def owner_of(self, key: CacheKey) -> Owner:
        """In whose name a sequence computes from now on.  Mutates: the key is remembered."""
        self._misses.note_key(key)
        return self._owners.of(key)

    def why_missed(self, key: CacheKey, tokens: Tokens, match: PrefixMatch) -> Miss:
        return explain(key, tokens, match, self._index, self._block_size, self._contents, self._misses, self.keeper.publications)

    def allocate(self, num_blocks: int) -> list[int]:
        """As the pool's, but what only an expired pin keeps isn't kept."""
        if self.keeper.pins and num_blocks > self.pool.num_free:
            self.keeper.expire()
            self.keep_quotas()
        return self.pool.allocate(num_blocks)

    # Content becomes findable.

    def insert(self, lease: Lease, owner: Owner, tokens: Tokens, first: int, end: int) -> list[int]:
        """Blocks `first` to `end` of the table are full: those of them that became findable."""
        size, chains = self._block_size, self._contents.chains
        cursor = lease.cursor if lease.num_inserted == first else self._cursor(lease, tokens, first)
        chain = chains[lease.blocks[first - 1]] if first else 0
        blocks = lease.blocks[first:end]
        content = tokens[first * size : end * size].tobytes()
        width = size * tokens.itemsize
        for block, at in zip(blocks, range(0, len(content), width), strict=True):
            chains[block] = chain = hash((chain, content[at : at + width]))  # `chained`, without a call for each block
        lease.cursor, refused = self._index.insert_all(cursor, tokens, first * size, blocks)
        lease.num_inserted = end
        if refused:
            for block in refused:
                self._lose(block)  # it was found as an open one until now
            blocks = [block for block in blocks if block not in refused]
        self._become_findable(owner, blocks)
        return blocks

    def insert_published(self, lease: Lease, owner: Owner, tokens: Tokens, first: int, full: int) -> None:
        """Of a sequence under a publication's key, that becomes findable which is published, no more."""
        publication = self.keeper.publications.get(owner.publication or "")
        if publication is not None and publication.key.digest == owner.key.digest:
            end = min(full, publication.num_blocks)
            if end > first and publication.covers(tokens, end, self._block_size):
                self.keeper.published(publication, self.insert(lease, owner, tokens, first, end))

    def extend(self, lease: Lease, owner: Owner, tokens: Tokens, place: int, fill: int) -> None:
        """The first `fill` places of the table's open block are written."""
        block = lease.blocks[place]
        if self._index.extend(lease.cursor, tokens, place * self._block_size, fill, block) and not self.pool.is_findable(block):
            self._contents.chains[block] = 0  # until `note_open_ends`: the number of what was here before tells nobody anything
            self._become_findable(owner, (block,))

    def note_open_ends(self, lease: Lease) -> None:
        """Before a lease lets go: number what may be asked for though it ends inside a block, the whole sequence and its prompt."""
        if lease.tokens is None or not lease.is_findable:
            return
        if end := lease.num_written % self._block_size:
            place = lease.num_written // self._block_size
            found = self._index.fill(lease.blocks[place])
            if 0 < found <= end:  # else another one wrote what is found behind
                self._contents.chains[lease.blocks[place]] = self._chain(lease, place, found)
        if (end := lease.prompt_len % self._block_size) and lease.prompt_len <= lease.num_written:
            place = lease.prompt_len // self._block_size
            if self._index.fill(lease.blocks[place]) >= end:
                self._contents.prompt_ends[lease.blocks[place]] = self._chain(lease, place, end)

    # Content is given up.

    def shorten(self, block: int, fill: int) -> None:
        """Make room in leased `block` for other content behind its first `fill` tokens."""
        self.keeper.lose(block)
        self.pool.unprotect(block)
        self._remember((block,))
        self._index.shorten(block, fill)
        if not self._index.fill(block):  # another one has these tokens, too
            self.pool.forget(block)

    def forget(self, blocks: Iterable[int], cause: str | None) -> int:
        """Make `blocks` found by nobody: how many of them became free by that, counted as evicted for `cause`."""
        blocks = list(filter(self.pool.is_findable, blocks))
        self._remember(blocks)
        freed = 0
        for block in blocks:
            self._index.forget(block)
            freed += self._lose(block)
        if cause is not None:
            self.evictions[cause] += freed
        return freed

    def unpublish(self, name: str) -> bool:
        """False when nothing has that name."""
        publication = self.keeper.publications.get(name)
        if publication is None:
            return False
        self.forget(tuple(publication.blocks), "unpublished")
        self.keeper.publications.remove(name)
        self._misses.forget(publication.key.namespace)
        return True

    def keep_quotas(self) -> None:
        """Evict what tenants hold above their quotas, their oldest first."""
        if self._quotas is not None:
            while (block := self._quotas.overdrawn()) is not None:
                self.forget((block,), "quota")

    def check(self) -> None:
        """Raise InvariantError when the parts are out of step.  O(blocks)."""
        self.pool.check()
        self._index.check()
        if self._quotas is not None:
            self._quotas.check()

    # How it is done.

    def _account_of(self, block: int) -> Account | None:
        owner = self._contents.owners[block]
        return None if owner is None else owner.account

    def _chain(self, lease: Lease, place: int, fill: int) -> int:
        """The number of all tokens up to the first `fill` of the block at `place`."""
        before = self._contents.chains[lease.blocks[place - 1]] if place else 0
        start = place * self._block_size
        return chained(before, lease.tokens or Tokens("i"), start, start + fill)

    def _cursor(self, lease: Lease, tokens: Tokens, num_blocks: int) -> Cursor:
        """Where the chain of the first `num_blocks` blocks ends, whether anything of it can be found or not."""
        return self._index.match(self._index.root(lease.key.digest), tokens, num_blocks * self._block_size, num_blocks).cursor

    def _become_findable(self, owner: Owner, blocks: Sequence[int]) -> None:
        owners, ends = self._contents.owners, self._contents.prompt_ends
        if ends:
            for block in blocks:
                if not self.pool.is_findable(block):
                    ends.pop(block, None)  # of other content, long ago
        for block in blocks:
            owners[block] = owner
        self.pool.mark_findable(blocks)

    def _on_evict(self, blocks: list[int]) -> None:
        """The pool gives these blocks to others."""
        self.evictions["capacity"] += len(blocks)
        self._remember(blocks)
        is_anything_kept = self.keeper.pins or self.keeper.publications
        forget = self._index.forget
        for block in blocks:
            forget(block)
            if is_anything_kept:
                self.keeper.lose(block)

    def _lose(self, block: int) -> bool:
        """The index finds `block` no more: whether it became free by that."""
        self.keeper.lose(block)
        return self.pool.forget(block)

    def _remember(self, blocks: Sequence[int]) -> None:
        """The content of `blocks` goes: whoever asks for it will be told that it was here."""
        contents = self._contents
        for owner, group in groupby(blocks, contents.owners.__getitem__):
            if owner is not None:
                self._misses.evicted(owner.key.namespace, contents.ghosts(group, owner.seed))
