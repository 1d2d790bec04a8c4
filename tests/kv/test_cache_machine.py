"""The paged cache against `CacheModel`: every hit, every eviction, every reason, and what is physically in each block that is read."""

from array import array

import pytest
from cache_model import CacheModel, Published
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_index import PlainIndex

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import CapacityError, InvalidRequestError, InvariantError
from octavo.kv import Lease, PagedKVCache, PrefixIndex
from octavo.kv.hash_index import HashIndex
from octavo.kv.radix_index import RadixIndex

PIN_SHARE = 0.5
TENANTS = ("a", "b")
# A forest: prompts are beginnings of these.
TREES = ("0000000000000", "0000000011111", "0000010101010", "0101010101010", "0101111111111")
token_lists = st.builds(lambda tree, length: list(map(int, tree[:length])), st.sampled_from(TREES), st.integers(1, 13))
NAMESPACES = [TenantNamespace("a")] * 4 + [TenantNamespace("b")] * 2 + [PublishedNamespace("p"), PublishedNamespace("q")]
keys = st.builds(CacheKey, adapter=st.sampled_from(["", "", "", "x"]), namespace=st.sampled_from(NAMESPACES))


class CacheMachine(RuleBasedStateMachine):
    """Forests of prompts over two tokens, computed, forked, aborted, evicted, pinned and published, in pools of a few blocks."""

    def make_index(self, block_size: int) -> PrefixIndex:
        return PlainIndex(block_size)

    @initialize(
        num_blocks=st.integers(3, 20),
        block_size=st.sampled_from([1, 2, 4]),
        quotas=st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 8)),
    )
    def make(self, num_blocks: int, block_size: int, quotas: dict[str, int]) -> None:
        self.now = 0.0
        self.manager = PagedKVCache(
            num_blocks, block_size, self.make_index(block_size), quotas=quotas, pin_share=PIN_SHARE, clock=lambda: self.now
        )
        self.model = CacheModel(num_blocks, block_size, quotas)
        self.tokens: dict[Lease, array] = {}
        self.keys: list[CacheKey] = []

    def num_free(self) -> int:
        held = {block for block in range(self.model.num_blocks) if self.model.count(block)}
        return self.model.num_blocks - len(held) - len(self.model.resting) - len(self.model.kept)

    def num_available(self) -> int:
        return self.num_free() + len(self.model.resting) + len(self.model.kept)

    @rule(key=keys, tokens=token_lists, cut=st.sampled_from([0, 0, 0, 1, 5, 20]), more=st.integers(0, 6))
    def begin(self, key: CacheKey, tokens: list[int], cut: int, more: int) -> None:
        self.open(key, tokens, cut, more)

    def open(self, key: CacheKey, tokens: list[int], cut: int, more: int) -> Lease | None:
        manager, model, size = self.manager, self.model, self.model.block_size
        limit = max(0, len(tokens) - cut)
        given = array("i", tokens)
        match = manager.match(key, given, limit)
        blocks, num_published, head_tokens, heads = model.match(key, tuple(tokens), limit)
        assert (list(match.blocks), match.num_published, match.head_tokens) == (blocks, num_published * size, head_tokens)
        assert match.num_tokens == len(blocks) * size + head_tokens
        assert match.head in heads if heads else match.head is None
        reason = model.reason(key, tuple(tokens), limit, self.keys)
        assert tuple(manager.why_missed(key, given, match)) == reason

        unheld = sum(not model.count(block) for block in blocks)
        spare = self.num_available() - unheld - (-(-len(tokens) // size) - len(blocks))
        fitted = manager.fit(match, len(tokens), len(tokens), len(tokens) + more, 0)
        assert (fitted is not None) == (spare >= 0)
        if fitted is None or -(-(len(tokens) + more) // size) > model.num_blocks:
            return None
        head, use = fitted.head, fitted.head_use
        if head is not None:
            is_free_to_take = not model.count(head) and not model.is_kept(head)
            ends_there = len(model.entries[head][1]) == match.num_tokens
            expected = "take" if is_free_to_take and ends_there else "copy" if model.count(head) or spare else "shorten"
            assert use == ("no room" if expected == "shorten" and not is_free_to_take else expected)
        assert manager.num_unheld(fitted) == unheld + (head is not None and use != "no room" and not model.count(head))
        lease = manager.open(fitted, len(tokens), len(tokens) + more)
        assert lease is not None and lease.num_cached == lease.num_written == fitted.num_tokens
        self.keys = [other for other in self.keys if other != key] + [key]
        free = self.num_free()
        model.held(blocks + ([head] if head is not None and use != "no room" else []))
        if use == "shorten":
            model.shorten(head, match.num_tokens)
        if use == "copy":
            assert lease.copies == [(head, lease.blocks[-1])]
            model.taken([lease.blocks[-1]], free)
        model.leases.append(lease)
        self.tokens[lease] = given
        return lease

    def serve(self, key: CacheKey, tokens: list[int], more: int, stays: bool) -> None:
        """A request to its end; one that stays has one token to go and can be forked."""
        lease = self.open(key, tokens, 0, more + stays)
        if lease is not None:
            for token in range(1 + more):
                self.advance({lease: len(tokens)}, token % 2)
            if not stays:
                self.end(lease)

    # Three times, so that more happens.
    requests = rule(key=keys, tokens=token_lists, more=st.integers(0, 3), stays=st.booleans())
    serve_one, serve_another, serve_a_third = requests(serve), requests(serve), requests(serve)

    @precondition(lambda self: self.model.publications)
    @rule(data=st.data())
    def compute_publication(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.model.publications.values())))
        self.serve(one.key, list(one.tokens), 0, False)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), count=st.integers(1, 3), token=st.integers(0, 1))
    def fork_and_go_on(self, data: st.DataObject, count: int, token: int) -> None:
        """As samples and beams do: all of them write in the next step."""
        lease = data.draw(st.sampled_from(list(self.tokens)))
        if not lease.copies:
            forks = [self.manager.fork(lease, lease.num_written, lease.num_written + 3) for _ in range(count)]
            for fork in forks:
                self.model.leases.append(fork)
                self.tokens[fork] = self.tokens[lease][: lease.num_written]
            self.advance(dict.fromkeys([lease, *forks], 1), token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), token=st.integers(0, 1), is_dropped=st.sampled_from([False, False, False, True]))
    def plan(self, data: st.DataObject, token: int, is_dropped: bool) -> None:
        """Some leases advance together."""
        chosen = data.draw(st.lists(st.sampled_from(list(self.tokens)), unique_by=id, min_size=1, max_size=4))
        self.advance({lease: data.draw(st.sampled_from([1, 1, 2, 4, 13])) for lease in chosen}, token, is_dropped)

    def advance(self, lengths: dict[Lease, int], token: int, is_dropped: bool = False) -> None:
        """All copies, then all writes; who has nothing left to compute gets `token` first."""
        manager, model, size = self.manager, self.model, self.model.block_size
        ends: dict[Lease, int] = {}
        for lease, length in lengths.items():
            tokens = self.tokens[lease]
            written = lease.num_written
            if written == len(tokens) < lease.final_tokens:
                tokens.append(token)
            end = min(len(tokens), written + length)
            table, free, available = list(lease.blocks), self.num_free(), self.num_available()
            demand = max(0, -(-end // size) - len(table)) + (manager.copy_demand(lease) if end > written else 0)
            is_ready = manager.grow(lease, end)
            assert is_ready == (demand <= available)
            if not is_ready:
                assert lease.blocks == table and self.num_available() == available
                continue
            model.taken([block for block in lease.blocks if block not in table], free)
            if end > written and written % size:
                tail = lease.blocks[written // size]
                if tail in model.entries and tail == table[written // size]:
                    model.shorten(tail, written)  # nothing, unless it could be found by more than that
            assert not any(lease.blocks[place] != block for place, block in enumerate(table) if place < lease.changed_from)
            lease.changed_from = len(lease.blocks)
            ends[lease] = end
        if is_dropped:
            return
        for lease in ends:
            for source, copy in lease.copies:
                model.content[copy] = list(model.content[source])
        for lease, end in ends.items():
            model.write(lease, tuple(self.tokens[lease]), end)
        for lease, end in ends.items():
            before, sources = lease.num_written, [source for source, _ in lease.copies]
            manager.commit(lease, self.tokens[lease], end)
            assert not lease.copies and lease.num_written == max(before, end)
            model.let_go(sources)
            model.commit(lease, tuple(self.tokens[lease]), before, end)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(0, 6))
    def fork(self, data: st.DataObject, more: int) -> None:
        lease = data.draw(st.sampled_from(list(self.tokens)))
        num_tokens = data.draw(st.one_of(st.just(lease.num_written), st.integers(0, lease.num_written)))
        blocks = lease.blocks[: -(-num_tokens // self.model.block_size)]
        available = self.manager.num_available
        if any(copy in blocks for _, copy in lease.copies):
            with pytest.raises(InvariantError, match="copies pending"):
                self.manager.fork(lease, num_tokens, num_tokens + more)
            return
        fork = self.manager.fork(lease, num_tokens, num_tokens + more)
        assert fork.blocks == blocks and self.manager.num_available == available
        self.model.leases.append(fork)
        self.tokens[fork] = self.tokens[lease][:num_tokens]
        self.tokens[fork].extend(data.draw(st.lists(st.integers(0, 1), max_size=min(more, 3))))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        self.end(data.draw(st.sampled_from(list(self.tokens))), twice)

    def end(self, lease: Lease, twice: bool = False) -> None:
        del self.tokens[lease]
        self.note_prompt(lease)
        order = [source for source, _ in lease.copies] + lease.blocks[::-1]
        self.manager.release(lease)
        if twice:
            self.manager.release(lease)
        self.model.leases.remove(lease)
        self.model.let_go(order)

    def note_prompt(self, lease: Lease) -> None:
        place, fill = divmod(lease.prompt_len, self.model.block_size)
        if fill and lease.prompt_len <= lease.num_written and lease.is_findable:
            _, found = self.model.entries.get(lease.blocks[place], (None, ()))
            if len(found) >= lease.prompt_len:
                self.model.prompt_ends[lease.blocks[place]] = found[: lease.prompt_len]

    @rule(name=st.sampled_from("st"), key=keys, tokens=token_lists, ttl=st.sampled_from([None, 1.0, 3.0]))
    def pin(self, name: str, key: CacheKey, tokens: list[int], ttl: float | None) -> None:
        model = self.model
        blocks, num_published, _, _ = model.match(key, tuple(tokens), len(tokens))
        own = [block for block in blocks[num_published:] if block not in model.published_blocks]
        others = {block for other, (kept, _) in model.pins.items() if other != name for block in kept}
        published = sum(len(one.tokens) // model.block_size for one in model.publications.values())
        if len(others | set(own)) + published > int(PIN_SHARE * model.num_blocks):
            with pytest.raises(CapacityError, match="pin_share"):
                self.manager.pin(name, key, array("i", tokens), ttl)
            return
        assert self.manager.pin(name, key, array("i", tokens), ttl) == len(blocks) * model.block_size
        before = model.pins.pop(name, (set(), 0.0))[0]
        model.pins[name] = (set(own), float("inf") if ttl is None else self.now + ttl)
        model.resettle(own)
        model.resettle(self.tail_first(before))

    def tail_first(self, blocks: set[int]) -> list[int]:
        return sorted(blocks, key=lambda block: -len(self.model.entries[block][1]))

    @precondition(lambda self: self.model.pins)
    @rule(name=st.sampled_from("st"))
    def unpin(self, name: str) -> None:
        assert self.manager.unpin(name) == (name in self.model.pins)
        self.model.resettle(self.tail_first(self.model.pins.pop(name, (set(), 0.0))[0]))

    @precondition(lambda self: self.model.pins)
    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        left = {pin.name: pin.num_tokens for pin in self.manager.pins()}
        for name, (blocks, end) in list(self.model.pins.items()):
            if end <= self.now:
                del self.model.pins[name]
                self.model.resettle(self.tail_first(blocks))
        assert left == {name: len(blocks) * self.model.block_size for name, (blocks, _) in self.model.pins.items()}

    @rule(
        name=st.sampled_from("pq"),
        adapter=st.sampled_from(["", "x"]),
        tokens=token_lists,
        tenants=st.sampled_from([None, frozenset("a"), frozenset("ab"), frozenset()]),
    )
    def publish(self, name: str, adapter: str, tokens: list[int], tenants: frozenset[str] | None) -> None:
        model = self.model
        key = CacheKey(adapter=adapter, namespace=PublishedNamespace(name))
        size = len(tokens) // model.block_size
        pinned = {block for blocks, _ in model.pins.values() for block in blocks}
        published = sum(len(one.tokens) // model.block_size for one in model.publications.values())
        if name in model.publications or not size:
            with pytest.raises(InvalidRequestError):
                self.manager.publish(name, key, array("i", tokens), tenants)
        elif size + len(pinned) + published > int(PIN_SHARE * model.num_blocks):
            with pytest.raises(CapacityError, match="pin_share"):
                self.manager.publish(name, key, array("i", tokens), tenants)
        else:
            self.manager.publish(name, key, array("i", tokens), tenants)
            model.publications[name] = Published(key, tuple(tokens[: size * model.block_size]), tenants)

    @precondition(lambda self: self.model.publications)
    @rule(name=st.sampled_from("pq"))
    def unpublish(self, name: str) -> None:
        model = self.model
        assert self.manager.unpublish(name) == (name in model.publications)
        if model.publications.pop(name, None):
            for block in [block for block, other in model.published_blocks.items() if other == name]:
                model.forget(block, "unpublished")
            model.ghosts = {ghost for ghost in model.ghosts if ghost[0].namespace != PublishedNamespace(name)}
            self.keys = [key for key in self.keys if key.namespace != PublishedNamespace(name)]

    @precondition(lambda self: len(self.model.entries) > 3)
    @rule(really=st.sampled_from([False] * 9 + [True]))
    def reset(self, really: bool) -> None:
        if really:
            model = self.model
            for lease in model.leases:
                self.note_prompt(lease)
            freed = len(model.resting) + len(model.kept)
            assert self.manager.reset_cache() == freed
            model.pins.clear()
            for block in list(model.entries):
                model.forget(block, "reset")

    @invariant()
    def lawful(self) -> None:
        manager, model = self.manager, self.model
        manager.check()
        pool = manager._pool
        fills = {block: manager._index.fill(block) for block in range(model.num_blocks) if pool.is_findable(block)}
        assert fills == {block: (len(prefix) - 1) % model.block_size + 1 for block, (_, prefix) in model.entries.items()}
        assert (list(pool._cached), sorted(pool._kept)) == (model.resting, sorted(model.kept))
        model.kept = list(pool._kept)
        stats = manager.stats()
        causes = ("capacity", "quota", "reset", "unpublished")
        assert [getattr(stats, f"evictions_{cause}") for cause in causes] == [model.evictions[cause] for cause in causes]
        counts = [model.count(block) for block in range(model.num_blocks)]
        assert stats.blocks_shared == sum(count > 1 for count in counts)
        assert stats.blocks_saved == sum(count - 1 for count in counts if count)
        parts = (stats.tokens_useful, stats.tokens_reserved, stats.tokens_internal, stats.tokens_external, stats.tokens_free)
        assert min(parts) >= 0 and sum(parts) == stats.tokens_total
        assert stats.blocks_pinned == sum(map(model.is_kept, range(model.num_blocks)))
        for lease, tokens in self.tokens.items():
            arriving = {copy: source for source, copy in lease.copies}
            for position in range(lease.num_written):
                block, place = lease.blocks[position // model.block_size], position % model.block_size
                there = model.content[arriving.get(block, block)][place]
                assert there == (lease.key.adapter, tuple(tokens[: position + 1])), "somebody wrote over what a lease still reads"

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for lease in self.tokens:
                self.manager.release(lease)
            self.manager.check()
            stats = self.manager.stats()
            assert stats.blocks_leased == 0 and stats.blocks_free + stats.blocks_cached == stats.blocks_total


class HashMachine(CacheMachine):
    def make_index(self, block_size: int) -> PrefixIndex:
        return HashIndex(block_size)


class RadixMachine(CacheMachine):
    def make_index(self, block_size: int) -> PrefixIndex:
        return RadixIndex(block_size)


for _machine in (CacheMachine, HashMachine, RadixMachine):
    _machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPlain = CacheMachine.TestCase
TestHash = HashMachine.TestCase
TestRadix = RadixMachine.TestCase
