"""Which cached block gives way first: the rules of `LeastCost`, one by one and against a plain model."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv import BlockPool, LeastCost, LeastRecentlyUsed


def cached(pool: BlockPool, num_blocks: int) -> list[int]:
    """A table of new content, let go of."""
    table = pool.allocate(num_blocks)
    pool.mark_findable(table)
    pool.release(table)
    return table


def reread(pool: BlockPool, table: list[int]) -> None:
    pool.retain(table)
    pool.release(table)


def test_what_is_read_more_often_stays_longer_whenever_it_was_read() -> None:
    pool = BlockPool(4, order=LeastCost(lambda position: 1.0, 16))
    (often,), (once,) = cached(pool, 1), cached(pool, 1)
    for _ in range(3):
        reread(pool, [often])
    reread(pool, [once])  # the latest, but only the second time
    assert list(pool._cached) == [once, often]


def test_what_costs_more_to_compute_again_stays_longer() -> None:
    pool = BlockPool(6, order=LeastCost(lambda position: 1.0 + position, 16))
    shallow, deep = cached(pool, 1), cached(pool, 3)
    # Of the long chain the tail goes first, although it costs most: the rest can be read without it, but it can't without the rest.
    assert list(pool._cached) == [*shallow, *deep[::-1]]


def test_what_is_never_asked_for_again_sinks_below_what_comes_anew() -> None:
    evicted: list[int] = []
    pool = BlockPool(2, on_evict=evicted.extend, order=LeastCost(lambda position: 1.0, 16))
    (popular,) = cached(pool, 1)
    for _ in range(4):
        reread(pool, [popular])  # read five times: worth 5
    for _ in range(20):
        cached(pool, 1)  # each evicts the one before, whose worth the clock takes over
    assert evicted.index(popular) == 4


def test_a_reused_block_id_starts_anew() -> None:
    pool = BlockPool(2, order=LeastCost(lambda position: 1.0, 16))
    (popular,) = cached(pool, 1)
    for _ in range(4):
        reread(pool, [popular])
    pool.forget(popular)
    assert pool.allocate(1) == [popular]
    pool.mark_findable([popular])
    pool.release([popular])
    (other,) = cached(pool, 1)
    assert list(pool._cached) == [popular, other]  # equal worth: who rested first


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.booleans()), min_size=1, max_size=40),
    cost=st.sampled_from([lambda position: 1.0, lambda position: 1.0 + position, lambda position: 1.0 / (1 + position)]),
)
def test_no_block_goes_before_those_that_follow_it(steps: list[tuple[int, int, bool]], cost: object) -> None:
    """A forest of chains, read, grown and let go of in any order; parents never before children."""
    evicted: list[int] = []
    pool = BlockPool(400, on_evict=evicted.extend, order=LeastCost(cost, 4))  # type: ignore[arg-type]
    chains: list[list[int]] = [[]]
    held: list[list[int]] = []
    for choice, length, is_release in steps:
        if is_release and held:
            pool.release(held.pop(choice % len(held)))
            continue
        trunk = chains[choice % len(chains)]
        trunk = trunk[: 1 + choice % max(1, len(trunk))]
        pool.retain(trunk)
        new = pool.allocate(length)
        pool.mark_findable(new)
        chains.append(trunk + new)
        held.append(trunk + new)
    for table in held:
        pool.release(table)
    order = list(pool._cached)
    assert not evicted and len(order) == pool.num_cached
    place = {block: number for number, block in enumerate(order)}
    for chain in chains:
        places = [place[block] for block in chain]
        assert places == sorted(places, reverse=True)
    pool.allocate(400)
    assert evicted == order
    pool.check()


def test_the_heap_of_least_cost_stays_in_proportion_to_what_rests() -> None:
    order = LeastCost(lambda position: 1.0, 16)
    pool = BlockPool(20, order=order)
    table = cached(pool, 10)
    for _ in range(1000):
        reread(pool, table)
    assert len(order) == 10 and len(order._heap) <= 64 + 2 * 10 + 1


def test_k12_01_eviction_by_cost_grows_with_the_logarithm_at_most() -> None:
    def seconds(num_blocks: int) -> float:
        pool = BlockPool(num_blocks, order=LeastCost(lambda position: 1.0, 16))
        for _ in range(num_blocks // 100):
            cached(pool, 100)
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            cached(pool, 1)
            times.append(time.perf_counter() - begin)
        return sorted(times)[100]

    least = min(seconds(1_000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(3)) < 4 * least


def test_an_order_is_empty_when_nothing_rests() -> None:
    for order in (LeastRecentlyUsed(), LeastCost(lambda position: 1.0, 16)):
        assert len(order) == 0 and 3 not in order
        order.add(3)
        assert (len(order), 3 in order, list(order)) == (1, True, [3])
        order.discard(3)
        order.discard(3)
        assert len(order) == 0
        try:
            order.pop()
        except KeyError:
            continue
        raise AssertionError("popped from nothing")
