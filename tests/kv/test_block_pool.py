"""`BlockPool` against a plain model, and its rules one by one."""

import time
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.errors import CapacityError, ConfigError, InvariantError
from octavo.kv import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """The model: a list of holdings, the set of findable blocks, and the order in which cached blocks came to rest."""

    @initialize(size=st.integers(4, 40))
    def make(self, size: int) -> None:
        self.size = size
        self.evicted: list[int] = []
        self.pool = BlockPool(size, on_evict=self.evicted.extend)
        self.holdings: list[list[int]] = []
        self.findable: set[int] = set()
        self.resting: list[int] = []
        self.kept: list[int] = []  # at rest, too, but protected
        self.protected: set[int] = set()
        self.quarantined: set[int] = set()
        self.distrusted: set[int] = set()
        self.offline: list[list[int]] = []

    def counts(self) -> Counter[int]:
        return Counter(block for holding in self.holdings for block in holding)

    def unavailable(self) -> int:
        return len(self.counts()) + len(self.quarantined) + sum(map(len, self.offline))

    def expect_evictions(self, wanted: int) -> list[int]:
        free = self.size - self.unavailable() - len(self.resting) - len(self.kept)
        gone = (self.resting + self.kept)[: max(0, wanted - free)]
        for block in gone:
            self.lose(block)
        return gone

    def lose(self, block: int) -> None:
        for order in (self.resting, self.kept):
            if block in order:
                order.remove(block)
        self.findable.discard(block)
        self.protected.discard(block)

    def rest(self, block: int) -> None:
        (self.kept if block in self.protected else self.resting).append(block)

    @rule(wanted=st.integers(0, 12))
    def allocate(self, wanted: int) -> None:
        self.evicted.clear()
        if wanted > self.size - self.unavailable():
            before = (self.pool.num_free, self.pool.num_cached)
            with pytest.raises(CapacityError, match="num_blocks"):
                self.pool.allocate(wanted)
            assert (self.pool.num_free, self.pool.num_cached) == before
            return
        taken_before = self.counts()
        expected = self.expect_evictions(wanted)
        blocks = self.pool.allocate(wanted)
        assert self.evicted == expected
        assert len(set(blocks)) == wanted
        assert not set(blocks) & (set(taken_before) | self.quarantined)
        self.holdings.append(blocks)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        holding = data.draw(st.sampled_from(self.holdings))
        self.pool.retain(holding)
        self.holdings.append(list(holding))

    @precondition(lambda self: self.resting or self.kept)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.resting + self.kept))
        self.pool.retain([block])
        (self.kept if block in self.protected else self.resting).remove(block)
        self.holdings.append([block])

    @rule(data=st.data())
    def protect(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.size - 1))
        if block not in self.findable:
            with pytest.raises(InvariantError, match="protected"):
                self.pool.protect(block)
            return
        self.pool.protect(block)
        self.protected.add(block)
        if block in self.resting:
            self.resting.remove(block)
            self.rest(block)

    @rule(data=st.data())
    def unprotect(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.size - 1))
        self.pool.unprotect(block)
        self.protected.discard(block)
        if block in self.kept:
            self.kept.remove(block)
            self.rest(block)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data(), one_by_one=st.booleans())
    def release(self, data: st.DataObject, one_by_one: bool) -> None:
        holding = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
        if one_by_one:
            for block in reversed(holding):
                self.pool.release_one(block)
        else:
            self.pool.release(holding)
        counts = self.counts()
        for block in reversed(holding):
            if not counts[block]:
                if block in self.distrusted:
                    self.distrusted.discard(block)
                    self.quarantined.add(block)
                elif block in self.findable:
                    self.rest(block)

    @precondition(lambda self: self.counts())
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.counts())))
        self.pool.mark_findable([block])
        if block not in self.distrusted:
            self.findable.add(block)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.size - 1))
        assert self.pool.forget(block) == (block in self.resting or block in self.kept)
        self.lose(block)

    @rule(data=st.data())
    def release_what_nobody_holds(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.size - 1))
        if not self.counts()[block]:
            held = next(iter(self.counts()), None)
            with pytest.raises(InvariantError):
                self.pool.release([block] if held is None else [held, block])
            with pytest.raises(InvariantError):
                self.pool.release_one(block)

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        if len(self.quarantined) + len(self.distrusted) < 3:
            block = data.draw(st.integers(0, self.size - 1))
            self.pool.quarantine(block)
            self.lose(block)
            if self.counts()[block]:
                self.distrusted.add(block)
            else:
                self.quarantined.add(block)
                self.offline = [[other for other in group if other != block] for group in self.offline]

    @rule(wanted=st.integers(1, 3))
    def take_offline(self, wanted: int) -> None:
        if wanted <= self.size - self.unavailable():
            self.expect_evictions(wanted)
            self.offline.append(self.pool.take_offline(wanted))

    @precondition(lambda self: self.offline)
    @rule()
    def bring_online(self) -> None:
        self.pool.bring_online(self.offline.pop())

    @invariant()
    def counts_agree(self) -> None:
        self.pool.check()
        counts = self.counts()
        assert [self.pool.count(block) for block in range(self.size)] == [counts[block] for block in range(self.size)]
        assert self.pool.num_leased == len(counts)
        assert (list(self.pool._cached), list(self.pool._kept)) == (self.resting, self.kept)
        assert self.pool.num_cached == len(self.resting) + len(self.kept)
        assert self.pool.num_protected == len(self.protected)
        assert self.pool.num_shared == sum(count > 1 for count in counts.values())
        assert self.pool.num_saved == sum(counts.values()) - len(counts)
        assert self.pool.num_quarantined == len(self.quarantined)
        assert self.pool.num_offline == sum(map(len, self.offline))
        pool = self.pool
        states = pool.num_free + pool.num_cached + pool.num_leased + pool.num_quarantined + pool.num_offline
        assert states == self.size

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            while self.holdings:
                self.pool.release(self.holdings.pop())
            self.pool.check()
            assert self.pool.num_leased == 0


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_k02_04_second_free_is_an_error_that_changes_nothing() -> None:
    pool = BlockPool(4)
    first = pool.allocate(1)
    pool.release(first)
    with pytest.raises(InvariantError, match="released twice"):
        pool.release(first)
    assert pool.num_free == 4
    one, other = pool.allocate(1), pool.allocate(1)
    assert one != other
    with pytest.raises(InvariantError, match="twice in one call"):
        pool.release(one + one)
    assert pool.count(one[0]) == 1
    pool.check()


def test_the_last_freed_is_taken_first_and_tails_before_heads() -> None:
    pool = BlockPool(8)
    held = pool.allocate(4)
    pool.release(held)
    assert pool.allocate(4) == held  # the head was freed last, so it comes first


def test_tails_are_evicted_before_heads_and_free_blocks_before_both() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, on_evict=evicted.extend)
    held = pool.allocate(4)
    for block in held:
        pool.mark_findable([block])
    pool.release(held)
    assert (pool.num_free, pool.num_cached) == (2, 4)
    assert not set(pool.allocate(2)) & set(held)
    assert evicted == []
    assert pool.allocate(3) == held[:0:-1]
    assert evicted == held[:0:-1]


def test_a_hit_leaves_the_eviction_order_from_its_middle() -> None:
    pool = BlockPool(3)
    held = pool.allocate(3)
    for block in held:
        pool.mark_findable([block])
    pool.release(held)
    pool.retain([held[1]])
    assert pool.allocate(2) == [held[2], held[0]]
    with pytest.raises(CapacityError):
        pool.allocate(1)


def test_a_free_block_cannot_be_shared() -> None:
    pool = BlockPool(2)
    with pytest.raises(InvariantError, match="nobody holds them"):
        pool.retain([0])
    with pytest.raises(InvariantError, match="nobody holds it"):
        pool.mark_findable([0])
    pool.check()


def test_a_pool_of_nothing_is_refused_with_the_setting_to_raise() -> None:
    with pytest.raises(ConfigError, match="num_blocks or kv_cache_memory_bytes"):
        BlockPool(0)


def test_check_finds_a_lost_and_a_doubled_block() -> None:
    pool = BlockPool(4)
    pool._free.pop()
    with pytest.raises(InvariantError, match="in no state"):
        pool.check()
    pool = BlockPool(4)
    pool._free.append(2)
    with pytest.raises(InvariantError, match="both free and free"):
        pool.check()


def seconds_per_eviction(num_blocks: int, num_leased: int) -> float:
    """The middle of many: one block is taken from a pool that is full of cached blocks, and comes to rest again."""
    pool = BlockPool(num_blocks + num_leased)
    pool.allocate(num_leased)
    blocks = pool.allocate(num_blocks)
    for block in blocks:
        pool.mark_findable([block])
    pool.release(blocks)
    times = []
    for _ in range(300):
        begin = time.perf_counter()
        (block,) = pool.allocate(1)
        times.append(time.perf_counter() - begin)
        pool.mark_findable([block])
        pool.release([block])
    return sorted(times)[100]


def test_k12_01_and_k12_06_eviction_costs_the_same_however_much_is_cached_or_leased() -> None:
    least = min(seconds_per_eviction(1_000, 0) for _ in range(3))
    assert min(seconds_per_eviction(20_000, 0) for _ in range(3)) < 3 * least
    assert min(seconds_per_eviction(1_000, 20_000) for _ in range(3)) < 3 * least
