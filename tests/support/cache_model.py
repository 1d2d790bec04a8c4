"""What a paged cache must find, written as plain dictionaries and searched from end to end."""

from collections import Counter
from dataclasses import dataclass, field

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.kv import Lease

Prefix = tuple[int, ...]


@dataclass
class Published:
    key: CacheKey
    tokens: Prefix
    tenants: frozenset[str] | None


@dataclass
class CacheModel:
    """entries: block -> (key, all tokens from the sequence's first to the last that is found in the block).

    content: block -> by place, what is physically there: the base key's adapter and all tokens up to that one.
    resting, kept: unheld findable blocks in the order in which they go; kept ones only when nothing else is left.
    """

    num_blocks: int
    block_size: int
    quotas: dict[str, int]
    entries: dict[int, tuple[CacheKey, Prefix]] = field(default_factory=dict)
    content: dict[int, list[object]] = field(default_factory=dict)
    resting: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    pins: dict[str, tuple[set[int], float]] = field(default_factory=dict)
    publications: dict[str, Published] = field(default_factory=dict)
    published_blocks: dict[int, str] = field(default_factory=dict)
    ghosts: set[tuple[CacheKey, Prefix]] = field(default_factory=set)
    prompt_ends: dict[int, Prefix] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    evictions: Counter[str] = field(default_factory=Counter)

    # What is found.

    def chain(self, key: CacheKey, tokens: Prefix, limit: int, skip: int) -> list[int]:
        size, found = self.block_size, []
        by_entry = {entry: block for block, entry in self.entries.items() if len(entry[1]) % size == 0}
        while (end := (skip + len(found) + 1) * size) <= limit:
            block = by_entry.get((key, tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def readable(self, key: CacheKey) -> list[Published]:
        if not isinstance(key.namespace, TenantNamespace):
            return []
        tenant = key.namespace.tenant
        return [one for one in self.publications.values() if one.tenants is None or tenant in one.tenants]

    def match(self, key: CacheKey, tokens: Prefix, limit: int) -> tuple[list[int], int, int, set[int]]:
        """Full blocks; how many of them are published; tokens of a head; the blocks that may be that head."""
        limit = min(limit, len(tokens))
        size = self.block_size
        published: list[int] = []
        for one in self.readable(key):
            if one.key.adapter == key.adapter:
                found = self.chain(one.key, tokens, min(limit, len(one.tokens)), 0)
                published = found if len(found) > len(published) else published
        blocks = published + self.chain(key, tokens, limit, len(published))
        start = len(blocks) * size
        wanted = tokens[start : min(limit, start + size)]
        heads: dict[int, tuple[int, bool]] = {}
        for block, (owner, prefix) in self.entries.items():
            if owner == key and (len(prefix) - 1) // size == len(blocks) and prefix[:start] == tokens[:start]:
                own = prefix[start:]
                common = next((i for i, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b), min(len(own), len(wanted)))
                if common:
                    heads[block] = common, common == len(own)
        best = max(heads.values(), default=(0, False))
        return blocks, len(published), best[0], {block for block, value in heads.items() if value == best}

    def reason(self, key: CacheKey, tokens: Prefix, limit: int, keys: list[CacheKey]) -> tuple[str | None, str | None]:
        blocks, _, head_tokens, _ = self.match(key, tokens, limit)
        size, place = self.block_size, len(blocks)
        found = place * size + head_tokens
        if found >= len(tokens):
            return None, None
        if found >= limit:
            return "prompt logprobs asked", None
        end = min(len(tokens), (place + 1) * size)
        covering = [one for one in self.readable(key) if one.tokens[: (place + 1) * size] == tokens[: (place + 1) * size]]
        covering = [one for one in covering if len(one.tokens) >= (place + 1) * size]
        if any((key, tokens[:stop]) in self.ghosts for stop in range(found + 1, end + 1)):
            return "evicted", None
        if any(one.key.adapter == key.adapter and (one.key, tokens[:end]) in self.ghosts for one in covering):
            return "evicted", None
        for other in keys:
            if other.namespace == key.namespace and other != key:
                more = [
                    prefix
                    for owner, prefix in self.entries.values()
                    if owner == other and (len(prefix) - 1) // size == place and prefix[: found + 1] == tokens[: min(limit, found + 1)]
                ]
                if more and limit > found:
                    return "key differs", "adapter"
        for one in covering:
            if one.key.adapter != key.adapter and (one.key, tokens[:end]) in self.entries.values() and limit >= end:
                return "key differs", "adapter"
        return "no match", None

    # What happens.

    def count(self, block: int) -> int:
        tables = sum(block in lease.blocks for lease in self.leases)
        return tables + sum(source == block for lease in self.leases for source, _ in lease.copies)

    def is_kept(self, block: int) -> bool:
        return block in self.published_blocks or any(block in blocks for blocks, _ in self.pins.values())

    def forget(self, block: int, cause: str | None) -> None:
        if block in self.entries:
            self.bury(block)
            del self.entries[block]
            if cause and (block in self.resting or block in self.kept):
                self.evictions[cause] += 1
        for order in (self.resting, self.kept):
            if block in order:
                order.remove(block)
        self.unkeep(block)

    def bury(self, block: int) -> None:
        owner, prefix = self.entries[block]
        self.ghosts.add((owner, prefix))
        if block in self.prompt_ends:
            self.ghosts.add((owner, self.prompt_ends.pop(block)))

    def unkeep(self, block: int) -> None:
        self.published_blocks.pop(block, None)
        for blocks, _ in self.pins.values():
            blocks.discard(block)

    def taken(self, blocks: list[int], free_before: int) -> None:
        """`blocks` were given out for new content; so many were free before."""
        gone = (self.resting + self.kept)[: max(0, len(blocks) - free_before)]
        assert set(gone) <= set(blocks), f"{gone} were to go first, but {blocks} were taken"
        for block in gone:
            self.forget(block, "capacity")
        assert not set(blocks) & set(self.entries), "a block is given out though its content should have stayed"
        for block in blocks:
            self.content[block] = [None] * self.block_size
            self.prompt_ends.pop(block, None)

    def held(self, blocks: list[int]) -> None:
        for order in (self.resting, self.kept):
            order[:] = [block for block in order if block not in blocks]

    def let_go(self, blocks: list[int]) -> None:
        """`blocks` lost a holder, in this order."""
        for block in blocks:
            if not self.count(block) and block in self.entries and block not in self.resting and block not in self.kept:
                (self.kept if self.is_kept(block) else self.resting).append(block)
        self.keep_quotas()

    def resettle(self, blocks: list[int]) -> None:
        """Pins began or ended: unheld blocks change the order that they wait in."""
        for block in blocks:
            if block in self.kept and not self.is_kept(block):
                self.kept.remove(block)
                self.resting.append(block)
            elif block in self.resting and self.is_kept(block):
                self.resting.remove(block)
                self.kept.append(block)
        self.keep_quotas()

    def keep_quotas(self) -> None:
        for tenant, quota in self.quotas.items():
            own = [block for block in self.resting if self.entries[block][0].namespace == TenantNamespace(tenant)]
            for block in own[: max(0, len(own) - quota)]:
                self.forget(block, "quota")

    def write(self, lease: Lease, tokens: Prefix, end: int) -> None:
        for position in range(lease.num_written, end):
            block, place = lease.blocks[position // self.block_size], position % self.block_size
            self.content[block][place] = (lease.key.adapter, tokens[: position + 1])

    def commit(self, lease: Lease, tokens: Prefix, before: int, end: int) -> None:
        """`tokens[before:end]` were written by `lease`."""
        size = self.block_size
        namespace = lease.key.namespace
        if not lease.is_findable or end <= before:
            return
        full = end // size
        if isinstance(namespace, PublishedNamespace):
            one = self.publications.get(namespace.name)
            full = 0 if one is None or one.key != lease.key else min(full, len(one.tokens) // size)
            if one is None or tokens[: full * size] != one.tokens[: full * size]:
                return
        for place in range(before // size, full):
            block, entry = lease.blocks[place], (lease.key, tokens[: (place + 1) * size])
            if any(other != block and there == entry for other, there in self.entries.items()):
                self.entries.pop(block, None)
                self.prompt_ends.pop(block, None)
                self.unkeep(block)
            else:
                self.entries[block] = entry
                if isinstance(namespace, PublishedNamespace):
                    self.published_blocks[block] = namespace.name
        if end % size and not isinstance(namespace, PublishedNamespace):
            block = lease.blocks[end // size]
            entry = (lease.key, tokens[:end])
            if not any(self.is_within(entry, there) for other, there in self.entries.items()):
                self.entries[block] = entry

    def is_within(self, entry: tuple[CacheKey, Prefix], other: tuple[CacheKey, Prefix]) -> bool:
        same_place = (len(entry[1]) - 1) // self.block_size == (len(other[1]) - 1) // self.block_size
        return same_place and entry[0] == other[0] and other[1][: len(entry[1])] == entry[1]

    def shorten(self, block: int, end: int) -> None:
        """Of the chain in `block`, only the first `end` tokens stay."""
        key, prefix = self.entries[block]
        if len(prefix) > end:
            self.bury(block)
            del self.entries[block]
            entry = (key, prefix[:end])
            if not any(self.is_within(entry, there) for there in self.entries.values()):
                self.entries[block] = entry
        self.unkeep(block)
