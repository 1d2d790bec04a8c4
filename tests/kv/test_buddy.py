"""`BuddyAllocator`: runs tile the pool, split and merge."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvariantError
from octavo.kv.buddy import BuddyAllocator, order_of


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 40), steps=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_runs_never_overlap_and_all_comes_back(size: int, steps: list[tuple[bool, int]]) -> None:
    fresh = BuddyAllocator(size)
    buddies = BuddyAllocator(size)
    held: dict[int, int] = {}
    for take, number in steps:
        if take:
            wanted = number + 1
            possible = buddies.can_allocate(wanted)
            start = buddies.allocate(wanted)
            assert (start is not None) == possible
            if start is not None:
                run = range(start, start + (1 << order_of(wanted)))
                assert len(run) >= wanted and run.stop <= size
                assert not any(set(run) & set(range(other, other + length)) for other, length in held.items())
                held[start] = len(run)
        elif held:
            start = sorted(held)[number % len(held)]
            del held[start]
            buddies.free(start)
        buddies.check()
        assert buddies.num_taken == sum(held.values())
    for start in held:
        buddies.free(start)
    buddies.check()
    assert buddies._free == fresh._free


def test_a_second_free_is_an_error_that_changes_nothing() -> None:
    buddies = BuddyAllocator(8)
    start = buddies.allocate(3)
    assert start == 0
    buddies.free(start)
    with pytest.raises(InvariantError, match="freed twice"):
        buddies.free(start)
    buddies.check()


def test_fragmentation_refuses_a_run_that_free_blocks_would_hold() -> None:
    buddies = BuddyAllocator(8)
    starts = [buddies.allocate(2) for _ in range(4)]
    for start in (starts[0], starts[2]):
        assert start is not None
        buddies.free(start)
    assert buddies.num_taken == 4
    assert not buddies.can_allocate(4)
    assert buddies.num_free_in_runs_of(2) == 4 and buddies.num_free_in_runs_of(3) == 0
