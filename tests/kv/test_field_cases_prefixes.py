"""Reported faults of prefix caches, replayed on the memory alone: wrong hits (K01), leaks (K02), and cliffs (K12)."""

import random
import sys
from array import array

import pytest

from octavo.core.cache_key import CacheKey, TenantNamespace
from octavo.kv import make_kv_cache
from octavo.kv.hash_index import HashIndex

both_indexes = pytest.mark.parametrize("prefix_index", ["hash", "radix"])


def prompt(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(length)]


class Memory:
    """A manager, and how a sequence that computes a prompt uses it."""

    def __init__(self, prefix_index, num_blocks=64, block_size=16, **settings):
        self.manager = make_kv_cache(
            num_blocks=num_blocks, block_size=block_size, max_model_len=num_blocks * block_size, prefix_index=prefix_index, **settings
        )

    def open(self, ids, key):
        manager, tokens = self.manager, array("i", ids)
        found = manager.fit(manager.match(key, tokens, len(tokens)), len(tokens), len(tokens), len(tokens), 0)
        miss = manager.why_missed(key, tokens, found)
        lease = manager.open(found, len(tokens), len(tokens))
        assert lease is not None
        return lease, miss

    def compute(self, ids, key):
        """How many tokens were found, and why not more."""
        lease, miss = self.open(ids, key)
        found = lease.num_cached
        assert self.manager.grow(lease, len(ids))
        self.manager.commit(lease, array("i", ids), len(ids))
        self.manager.release(lease)
        return found, miss.reason, miss.field


@both_indexes
def test_k01_01_an_adapter_replaced_under_its_name_finds_nothing_of_the_old_one(prefix_index):
    memory, ids = Memory(prefix_index), prompt(64)
    first, second = CacheKey(adapter="digest of A1", adapter_scale=1.0), CacheKey(adapter="digest of A2", adapter_scale=1.0)
    assert memory.compute(ids, first) == (0, "no match", None)
    assert memory.compute(ids, second) == (0, "key differs", "adapter")
    assert memory.compute(ids, second) == (64, None, None)
    assert memory.compute(ids, first) == (64, None, None)  # loaded again, it is what it was
    memory.compute(prompt(64 * 16, 1), second)  # what nobody can reach is no burden: it gives way as anything does
    assert memory.compute(ids, first) == (0, "evicted", None)


@both_indexes
def test_k01_02_adapter_and_scale_both_decide(prefix_index):
    memory, ids = Memory(prefix_index), prompt(64)
    keys = [CacheKey(adapter=adapter, adapter_scale=scale) for adapter, scale in (("0", 1.0), ("1", 1.0), ("0", 0.5), ("", 0.0))]
    reports = [memory.compute(ids, key) for key in keys]
    assert [found for found, _, _ in reports] == [0] * 4
    assert [reason for _, reason, _ in reports] == ["no match"] + ["key differs"] * 3
    assert {field for _, _, field in reports[1:]} <= {"adapter", "adapter_scale"}
    assert [memory.compute(ids, key)[0] for key in keys] == [64] * 4
    ids = prompt(64, 1)
    memory.compute(ids, keys[0])
    assert memory.compute(ids, keys[2]) == (0, "key differs", "adapter_scale")


@both_indexes
def test_k01_03_no_text_of_a_clients_reaches_another_namespace(prefix_index):
    ids = prompt(64)
    memory = Memory(prefix_index)
    adapter = CacheKey(adapter="a1b2c3", adapter_scale=1.0)
    memory.compute(ids, adapter)
    for salt in ("a1b2c3", adapter.digest.hex(), repr(adapter), "T", "P", "\x00"):
        assert memory.compute(ids, CacheKey(namespace=TenantNamespace("default", salt)))[0] == 0


@both_indexes
def test_k01_04_other_weights_find_nothing_and_a_running_sequence_stays_with_its_own(prefix_index):
    """Weights are never changed under an engine; whoever shares memory between two finds each one's own."""
    memory, ids = Memory(prefix_index), prompt(64)
    old, new = CacheKey(weights="seed 1"), CacheKey(weights="seed 2")
    memory.compute(ids, old)
    running, _ = memory.open(ids + [7] * 5, old)
    assert memory.compute(ids, new) == (0, "key differs", "weights")
    memory.manager.grow(running, 69)
    memory.manager.commit(running, array("i", ids + [7] * 5), 69)
    memory.manager.release(running)
    assert memory.compute(ids + [7] * 5, new)[0] == 64
    assert memory.compute(ids + [7] * 5, old)[0] == 69


@both_indexes
def test_k02_04_a_second_release_of_what_is_shared_takes_nothing_from_others(prefix_index):
    memory, ids, key = Memory(prefix_index), prompt(70), CacheKey()
    memory.compute(ids, key)
    leases = [memory.open([*ids, n], key)[0] for n in range(5)]
    for lease in leases[:4]:
        for _ in range(3):
            memory.manager.release(lease)
        memory.manager.check()
    assert memory.manager.stats().blocks_leased == 4 + 2  # and the head that the last one is still to copy
    memory.manager.release(leases[4])
    assert memory.manager.stats().blocks_leased == 0


@both_indexes
def test_k02_05_a_copy_that_never_came_keeps_nothing(prefix_index):
    """Nothing has to happen afterwards for it: the source of the copy is let go with the lease."""
    memory, ids, key = Memory(prefix_index), prompt(40), CacheKey()
    memory.compute(ids, key)
    first, _ = memory.open([*ids[:36], 1, 2], key)
    second, _ = memory.open([*ids[:35], 3, 4], key)
    assert sum(len(lease.copies) for lease in (first, second)) > 0
    for lease in (first, second):
        memory.manager.release(lease)
    stats = memory.manager.stats()
    assert (stats.blocks_leased, stats.blocks_saved) == (0, 0)
    memory.manager.check()
    cached = stats.blocks_cached
    assert memory.manager.reset_cache() == cached
    assert memory.manager.stats().blocks_free == 64


# Cliffs: work is counted in executed lines, which no other program on the machine disturbs.


def lines_of(function, *args):
    """How many lines of Python the call executes."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return count


def saturated(eviction, prefix_index, num_cached, num_held):
    """A pool full of short cached prompts, the oldest of which running sequences hold."""
    memory, key = Memory(prefix_index, num_cached + num_held, eviction=eviction), CacheKey()
    held = []
    for n in range(num_held + num_cached):
        ids = [n, *range(15)]
        memory.compute(ids, key)
        if n < num_held:
            held.append(memory.open(ids, key)[0])
    assert memory.manager.stats().blocks_free == 0
    return memory, held


def evict(memory, num_blocks):
    lease, _ = memory.open([10**6] * num_blocks * 16, CacheKey())
    before = memory.manager.stats().evictions_capacity
    lines = lines_of(memory.manager.grow, lease, num_blocks * 16)
    assert memory.manager.stats().evictions_capacity - before == num_blocks
    return lines


@both_indexes
@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_k12_01_evicting_one_block_costs_the_same_however_many_are_cached(prefix_index, eviction):
    few, many = (evict(saturated(eviction, prefix_index, count, 0)[0], 1) for count in (1_000, 5_000))
    assert many <= few + 20


@both_indexes
@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_k12_06_blocks_in_use_are_not_walked_over(prefix_index, eviction):
    free_of_them, _ = saturated(eviction, prefix_index, 600, 0)
    among_them, held = saturated(eviction, prefix_index, 600, 256)
    alone, beside = evict(free_of_them, 500), evict(among_them, 500)
    assert beside <= alone + 3 * 256  # each is met at most once, in three lines
    assert all(lease.is_open and len(lease.blocks) == 1 for lease in held)


def test_k12_04_a_block_is_hashed_once_and_growth_only_for_itself():
    calls = 0

    def counted(chunk):
        nonlocal calls
        calls += 1
        return hash(chunk)

    def cost(function, *args):
        before = calls
        result = function(*args)
        return calls - before, result

    size, key = 16, CacheKey()
    tokens = array("i", (n * 7919 % 50_000 for n in range(50_000)))
    full = len(tokens) // size
    manager = Memory(HashIndex(size, counted), num_blocks=4_000).manager

    looked_up, match = cost(manager.match, key, tokens, len(tokens))
    assert looked_up <= 2  # its root, and the first block, which is missing
    lease = manager.open(manager.fit(match, len(tokens), len(tokens), 60_000, 0), len(tokens), 60_000)
    hashed = 0
    for end in range(2_048, len(tokens) + 2_048, 2_048):
        end = min(end, len(tokens))
        assert manager.grow(lease, end)
        hashed += cost(manager.commit, lease, tokens, end)[0]
    assert full <= hashed <= full + 2
    for _ in range(160):  # ten blocks of generated tokens
        tokens.append(3)
        assert manager.grow(lease, len(tokens))
        hashed += cost(manager.commit, lease, tokens, len(tokens))[0]
    assert hashed <= full + 10 + 2

    manager.release(lease)  # a preemption: the chain is looked up once and nothing is hashed a second time for being written
    again, match = cost(manager.match, key, tokens, len(tokens))
    assert (match.num_tokens, again) == (len(tokens), again) and again <= full + 10 + 2
    lease = manager.open(manager.fit(match, len(tokens), 50_000, 60_000, 0), 50_000, 60_000)
    turn = array("i", [*tokens, *range(160)])
    assert manager.grow(lease, len(turn))
    assert cost(manager.commit, lease, turn, len(turn))[0] <= 10 + 2
