"""The rules of shared memory one by one: heads and forks.  Blocks of four tokens."""

from array import array

import pytest
from memory_calls import KEY, advance, begin, found, ids, make, serve, why

from octavo.core.errors import InvariantError

# Heads.


def test_a_head_that_somebody_holds_is_copied_and_its_source_kept_until_the_commit() -> None:
    manager = make()
    first = begin(manager, ids(7))
    advance(manager, first, ids(7))
    tokens = array("i", [0, 1, 2, 3, 4, 5, 99])
    lease = begin(manager, tokens)
    source, copy = first.blocks[1], lease.blocks[1]
    assert lease.copies == [(source, copy)] and copy != source
    assert (lease.num_cached, lease.changed_from, lease.shares_tail) == (6, 0, False)
    manager.release(first)
    assert manager.stats().blocks_leased == 3  # the source, though no table has it
    manager.check()
    advance(manager, lease, tokens)
    assert not lease.copies and manager.stats().blocks_leased == 2
    assert found(manager, ids(7)) == 7 and found(manager, tokens) == 7


def test_an_aborted_copy_gives_its_source_back() -> None:
    manager = make()
    serve(manager, ids(7))
    lease = begin(manager, array("i", [0, 1, 2, 3, 4, 5, 99]))
    assert len(lease.copies) == 1
    manager.release(lease)
    manager.release(lease)
    assert (manager.stats().blocks_leased, found(manager, ids(7))) == (0, 7)
    manager.check()


def test_a_head_that_ends_where_the_match_ends_and_nobody_holds_is_taken_over() -> None:
    manager = make()
    blocks = serve(manager, ids(6))
    lease = begin(manager, ids(9))
    assert lease.blocks == blocks and not lease.copies and lease.num_cached == 6
    advance(manager, lease, ids(9))
    assert found(manager, ids(9)) == 9


def test_in_a_full_pool_a_longer_head_is_taken_over_and_its_entry_shortened() -> None:
    manager = make(2)
    blocks = serve(manager, ids(8))
    tokens = array("i", [0, 1, 2, 3, 4, 5, 99])
    lease = begin(manager, tokens)
    assert lease.blocks == blocks and not lease.copies and lease.num_cached == 6
    assert found(manager, ids(8)) == 6
    advance(manager, lease, tokens)
    assert (found(manager, tokens), found(manager, ids(8))) == (7, 6)
    assert why(manager, ids(8)) == ("evicted", None)


def test_a_pinned_head_is_copied_or_else_left_alone() -> None:
    manager = make(4)
    serve(manager, ids(8))
    assert manager.pin("p", KEY, ids(8), None) == 8
    tokens = array("i", [0, 1, 2, 3, 4, 5, *range(99, 109)])  # four blocks, all there are
    match = manager.match(KEY, tokens, 16)
    assert match.num_tokens == 6
    fitted = manager.fit(match, 16, 16, 16, 0)
    assert fitted is not None and (fitted.num_tokens, fitted.head_use) == (4, "no room")
    assert manager.why_missed(KEY, tokens, fitted) == ("no room to copy", None)
    fitted = manager.fit(match, 12, 12, 12, 0)
    assert fitted is not None and (fitted.num_tokens, fitted.head_use) == (6, "copy")


def test_a_head_below_the_copys_worth_is_not_taken() -> None:
    manager = make(copy_worth=3)
    serve(manager, ids(8))
    tokens = array("i", [0, 1, 2, 3, 4, 5, 99])
    assert found(manager, tokens) == 4 and why(manager, tokens) == ("below the copy's worth", None)
    lease = begin(manager, tokens)
    assert not lease.copies and lease.num_cached == 4
    manager.copy_worth = 2
    assert found(manager, tokens) == 6


def test_a_full_hit_writes_nothing_for_its_last_token() -> None:
    manager = make()
    first = begin(manager, ids(8), final=12)
    advance(manager, first, ids(8))
    lease = begin(manager, ids(8), final=12)
    assert lease.num_cached == 8 and lease.blocks == first.blocks
    available = manager.num_available
    assert manager.grow(lease, 8) and manager.num_available == available and not lease.copies
    manager.commit(lease, ids(8), 8)
    assert lease.blocks == first.blocks and manager.stats().blocks_shared == 2 and manager.stats().blocks_saved == 2


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11, 12])
@pytest.mark.parametrize("differs_at", [0, 1, 3, 5, 9, 20])
def test_alone_in_the_pool_whatever_is_cached_or_pinned_a_sequence_runs(length: int, differs_at: int) -> None:
    manager = make(3, pin_share=1.0)
    serve(manager, ids(12))
    manager.pin("p", KEY, ids(12), None)
    tokens = ids(length)
    if differs_at < length:
        tokens[differs_at] = 77
    lease = begin(manager, tokens, final=12)
    advance(manager, lease, tokens)
    for end in range(length + 1, 13):
        tokens.append(50 + end)
        advance(manager, lease, tokens, end)
    assert lease.num_written == 12


# Forks.


def test_of_forks_that_write_the_last_one_writes_in_place() -> None:
    manager = make()
    tokens = ids(6)
    first = begin(manager, tokens, final=10)
    advance(manager, first, tokens)
    forks = [first, *(manager.fork(first, 6, 10) for _ in range(2))]
    shared = first.blocks[1]
    assert all(fork.shares_tail and fork.blocks == first.blocks for fork in forks)
    assert manager.stats().blocks_leased == 2 and manager.stats().blocks_saved == 4
    assert manager.stats().tokens_useful == 6 and manager.stats().tokens_reserved == 2
    for fork in forks:  # in one step: nothing is committed between
        fork.changed_from = 2
        assert manager.copy_demand(fork) == (fork is not forks[-1])
        assert manager.grow(fork, 7)
        assert not fork.shares_tail
    assert [fork.copies for fork in forks] == [[(shared, forks[0].blocks[1])], [(shared, forks[1].blocks[1])], []]
    assert [fork.changed_from for fork in forks] == [1, 1, 2]
    assert len({fork.blocks[1] for fork in forks}) == 3 and forks[2].blocks[1] == shared
    for number, fork in enumerate(forks):
        manager.commit(fork, array("i", [*range(6), 90 + number]), 7)
    manager.check()
    assert [found(manager, array("i", [*range(6), 90 + number])) for number in range(3)] == [7, 7, 7]


def test_a_fork_from_the_middle_of_what_others_find_copies_or_shortens() -> None:
    for num_blocks, is_copied in ((3, True), (2, False)):
        manager = make(num_blocks)
        first = begin(manager, ids(8))
        advance(manager, first, ids(8))
        fork = manager.fork(first, 6, 8)
        manager.release(first)
        assert manager.copy_demand(fork) == 0
        table = list(fork.blocks)
        assert manager.grow(fork, 7)
        assert (fork.blocks != table, len(fork.copies)) == (is_copied, int(is_copied))
        assert found(manager, ids(8)) == (8 if is_copied else 6)  # before anything is written over it
        tokens = array("i", [0, 1, 2, 3, 4, 5, 99])
        manager.commit(fork, tokens, 7)
        manager.check()
        assert (found(manager, tokens), found(manager, ids(8))) == (7, 8 if is_copied else 6)


def test_a_pending_copy_that_needs_what_would_be_written_over_still_counts_as_a_holder() -> None:
    for position, demand in ((6, 1), (7, 0)):
        manager = make()
        first = begin(manager, ids(7), final=8)
        advance(manager, first, ids(7))
        fork = manager.fork(first, position, 8)
        assert manager.grow(first, 8) and len(first.copies) == 1  # needs three tokens of the block
        assert manager.copy_demand(fork) == demand


def test_growing_a_fork_without_room_for_its_copy_changes_nothing() -> None:
    manager = make(2)
    first = begin(manager, ids(6), final=8)
    advance(manager, first, ids(6))
    fork = manager.fork(first, 6, 8)
    assert not manager.grow(fork, 7)
    assert fork.blocks == first.blocks and not fork.copies and fork.shares_tail
    assert manager.grow(fork, 6)  # written already: query-only
    manager.release(first)
    assert manager.grow(fork, 7) and not fork.copies
    manager.check()


def test_a_lease_forks_only_what_is_written_and_has_arrived() -> None:
    manager = make()
    lease = begin(manager, ids(6))
    assert manager.grow(lease, 6)
    with pytest.raises(InvariantError, match="0 written"):
        manager.fork(lease, 6, 8)
    manager.commit(lease, ids(6), 6)
    waiting = begin(manager, array("i", [0, 1, 2, 3, 4, 99]))
    assert waiting.copies
    with pytest.raises(InvariantError, match="1 copies pending"):
        manager.fork(waiting, 5, 8)
    assert manager.fork(waiting, 4, 8).blocks == lease.blocks[:1]
    manager.release(lease)
    with pytest.raises(InvariantError, match="released"):
        manager.fork(lease, 0, 8)
