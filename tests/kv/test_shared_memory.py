"""The rules of shared memory one by one: heads, forks, quotas, pins, publications, reasons.  Blocks of four tokens."""

from array import array
from dataclasses import replace

import pytest
from plain_index import PlainIndex

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import CapacityError, ConfigError, InvalidRequestError, InvariantError
from octavo.kv import Lease, PagedKVCache
from octavo.kv.misses import MissMemory

KEY = CacheKey(weights="w", namespace=TenantNamespace("a"))
OTHER = replace(KEY, namespace=TenantNamespace("b"))


def make(num_blocks: int = 10, **settings: object) -> PagedKVCache:
    return PagedKVCache(num_blocks, 4, PlainIndex(4), **settings)  # type: ignore[arg-type]


def ids(length: int, first: int = 0) -> array:
    return array("i", range(first, first + length))


def begin(manager: PagedKVCache, tokens: array, key: CacheKey = KEY, final: int | None = None) -> Lease:
    final = len(tokens) if final is None else final
    match = manager.fit(manager.match(key, tokens, len(tokens)), len(tokens), len(tokens), final, 0)
    assert match is not None
    lease = manager.open(match, len(tokens), final)
    assert lease is not None
    return lease


def advance(manager: PagedKVCache, lease: Lease, tokens: array, end: int | None = None) -> None:
    end = len(tokens) if end is None else end
    assert manager.grow(lease, end)
    manager.commit(lease, tokens, end)
    manager.check()


def serve(manager: PagedKVCache, tokens: array, key: CacheKey = KEY) -> list[int]:
    """A sequence from its beginning to its end: the blocks that it had."""
    lease = begin(manager, tokens, key)
    advance(manager, lease, tokens)
    blocks = list(lease.blocks)
    manager.release(lease)
    manager.check()
    return blocks


def found(manager: PagedKVCache, tokens: array, key: CacheKey = KEY) -> int:
    return manager.match(key, tokens, len(tokens)).num_tokens


def why(manager: PagedKVCache, tokens: array, key: CacheKey = KEY, limit: int | None = None) -> tuple[str | None, str | None]:
    return tuple(manager.why_missed(key, tokens, manager.match(key, tokens, len(tokens) if limit is None else limit)))


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


# Quotas.


def test_a_tenant_above_its_quota_loses_its_own_oldest_and_nobody_elses() -> None:
    manager = make(20, quotas={"a": 3})
    serve(manager, ids(12, 500), OTHER)
    serve(manager, ids(8))
    assert manager.stats().evictions_quota == 0
    serve(manager, ids(8, 100))
    assert (found(manager, ids(8)), found(manager, ids(8, 100)), found(manager, ids(12, 500), OTHER)) == (4, 8, 12)
    stats = manager.stats()
    assert (stats.evictions_quota, stats.evictions_capacity, stats.blocks_cached) == (1, 0, 6)
    assert why(manager, ids(8)) == ("evicted", None)


def test_a_quota_is_of_the_tenant_over_all_its_keys_and_only_of_what_nobody_holds() -> None:
    manager = make(20, default_quota=2)
    lease = begin(manager, ids(12))
    advance(manager, lease, ids(12))
    serve(manager, ids(8, 100), replace(KEY, adapter="x"))
    assert manager.stats().blocks_cached == 2  # three more are held
    manager.release(lease)
    assert manager.stats().blocks_cached == 2 and found(manager, ids(12)) == 8
    with pytest.raises(ConfigError, match="'a' is -1 blocks"):
        make(quotas={"a": -1})


def test_pinned_and_published_blocks_are_outside_the_quota() -> None:
    manager = make(20, default_quota=2)
    serve(manager, ids(8))
    manager.pin("p", KEY, ids(8), None)
    serve(manager, ids(8, 100))
    assert found(manager, ids(8)) == 8 and found(manager, ids(8, 100)) == 8
    manager.unpin("p")
    assert manager.stats().blocks_cached == 2
    publish(manager, "n", ids(12, 200))
    assert manager.stats().blocks_cached == 5


# Pins.


def test_pinned_blocks_are_evicted_last_but_before_a_request_fails() -> None:
    manager = make(6)
    serve(manager, ids(8))
    assert manager.pin("p", KEY, ids(8), None) == 8
    serve(manager, ids(16, 100))
    serve(manager, ids(16, 200))
    assert found(manager, ids(8)) == 8 and manager.stats().blocks_pinned == 2
    serve(manager, ids(24, 300))
    assert found(manager, ids(8)) == 0 and manager.pins()[0].num_tokens == 0 and manager.stats().blocks_pinned == 0


def test_a_pin_ends_with_its_time() -> None:
    now = [0.0]
    manager = make(6, clock=lambda: now[0])
    serve(manager, ids(8))
    manager.pin("p", KEY, ids(8), 10.0)
    now[0] = 4.0
    assert manager.pins() == [("p", 8, 6.0)]
    serve(manager, ids(16, 100))
    now[0] = 10.0
    serve(manager, ids(8, 200))  # somebody needs memory: what an ended pin kept is like any other, and the latest to rest
    assert manager.stats().blocks_pinned == 0 and manager.pins() == [] and not manager.unpin("p")
    assert (found(manager, ids(8)), found(manager, ids(16, 100))) == (8, 8)


def test_pins_have_a_cap_with_numbers_and_a_name_is_replaced() -> None:
    manager = make(8, pin_share=0.5)
    serve(manager, ids(12))
    serve(manager, ids(12, 100))
    assert manager.pin("p", KEY, ids(8), None) == 8
    assert manager.pin("p", KEY, ids(12), None) == 12
    manager.check()
    assert manager.stats().blocks_pinned == 3
    with pytest.raises(CapacityError, match=r"3 blocks of 4 tokens; 3 are pinned and 0 published.*4 of 8 \(pin_share=0.5\)"):
        manager.pin("q", KEY, ids(12, 100), None)
    assert [pin.name for pin in manager.pins()] == ["p"]
    assert manager.pin("q", KEY, ids(8), None) == 8  # these are covered already
    assert manager.pin("p", KEY, ids(4, 100), None) == 4
    assert manager.stats().blocks_pinned == 3
    with pytest.raises(InvalidRequestError, match="ttl above 0"):
        manager.pin("q", KEY, ids(8), 0.0)
    with pytest.raises(ConfigError, match="pin_share=2"):
        make(pin_share=2)
    manager.check()


# Publications.


def publish(manager: PagedKVCache, name: str, tokens: array, tenants: frozenset[str] | None = None) -> list[int]:
    key = replace(KEY, namespace=PublishedNamespace(name))
    manager.publish(name, key, tokens, tenants)
    return serve(manager, tokens, key)


def test_a_publication_is_read_by_whole_blocks_by_those_it_lists_then_their_own_chain_goes_on() -> None:
    manager = make(20)
    blocks = publish(manager, "n", ids(10), frozenset({"a"}))
    match = manager.match(KEY, ids(11), 11)
    assert (match.blocks, match.num_tokens, match.num_published) == (tuple(blocks[:2]), 8, 8)
    assert found(manager, ids(11), OTHER) == 0 and why(manager, ids(11), OTHER) == ("no match", None)
    lease = begin(manager, ids(14))
    assert lease.blocks[:2] == blocks[:2]
    advance(manager, lease, ids(14))
    manager.release(lease)
    match = manager.match(KEY, ids(14), 14)
    assert (match.num_tokens, match.num_published, match.head_tokens) == (14, 8, 2)
    assert manager.match(KEY, ids(14), 6).num_tokens == 4  # of a published block not a part


def test_unpublishing_frees_at_once_what_nobody_reads_and_the_rest_when_its_readers_end() -> None:
    manager = make(20)
    blocks = publish(manager, "n", ids(12))
    lease = begin(manager, array("i", [*range(8), 99]))
    assert lease.blocks == blocks[:2]
    assert manager.unpublish("n") and not manager.unpublish("n")
    assert found(manager, ids(12)) == 0 and manager.stats().evictions_unpublished == 1
    manager.check()
    advance(manager, lease, array("i", [*range(8), 99]))
    manager.release(lease)
    stats = manager.stats()
    assert (stats.blocks_leased, stats.blocks_cached, stats.blocks_pinned) == (0, 1, 0)  # the reader's own third block
    assert why(manager, ids(12)) == ("no match", None)


def test_what_a_tenant_had_before_is_not_matched_while_a_publication_covers_it_and_stays_its_own() -> None:
    manager = make(20)
    own = serve(manager, ids(12))
    published = publish(manager, "n", ids(8))
    match = manager.match(KEY, ids(12), 12)
    assert (match.blocks, match.num_published) == ((*published, own[2]), 8)
    manager.unpublish("n")
    assert manager.match(KEY, ids(12), 12).blocks == tuple(own)


def test_under_a_publications_key_nothing_else_becomes_findable() -> None:
    manager = make(20)
    key = replace(KEY, namespace=PublishedNamespace("n"))
    manager.publish("n", key, ids(8), None)
    serve(manager, ids(8, 50), key)
    serve(manager, ids(13), key)
    assert manager.stats().blocks_cached == 2
    manager.unpublish("n")
    serve(manager, ids(13), key)
    assert manager.stats().blocks_cached == 0


def test_a_publication_of_another_key_is_not_read() -> None:
    manager = make(20)
    publish(manager, "n", ids(8))
    other = replace(KEY, chat_template="other")
    assert found(manager, ids(8), other) == 0
    assert why(manager, ids(8), other) == ("key differs", "chat_template")


def test_publications_are_refused_by_name_key_length_and_cap() -> None:
    manager = make(8)
    key = replace(KEY, namespace=PublishedNamespace("n"))
    with pytest.raises(InvalidRequestError, match="less than a block of 4"):
        manager.publish("n", key, ids(3), None)
    with pytest.raises(InvalidRequestError, match="PublishedNamespace"):
        manager.publish("n", KEY, ids(8), None)
    with pytest.raises(CapacityError, match=r"5 blocks of 4 tokens; 0 are pinned and 0 published.*cover 4 of 8"):
        manager.publish("n", key, ids(20), None)
    manager.publish("n", key, ids(8), None)
    with pytest.raises(InvalidRequestError, match="unpublish it first"):
        manager.publish("n", key, ids(8), None)
    serve(manager, ids(12, 100))
    with pytest.raises(CapacityError, match="2 published"):
        manager.pin("p", KEY, ids(12, 100), None)


def test_a_running_request_outlives_pins_and_publications() -> None:
    manager = make(4)
    publish(manager, "n", ids(4))
    serve(manager, ids(4, 50))
    manager.pin("p", KEY, ids(4, 50), None)
    lease = begin(manager, ids(16, 100))
    advance(manager, lease, ids(16, 100))
    assert (found(manager, ids(4)), manager.stats().blocks_pinned) == (0, 0)
    assert why(manager, ids(4)) == ("evicted", None)


# Reasons.


def test_each_reason() -> None:
    manager = make(6)
    assert why(manager, ids(8)) == ("no match", None)
    serve(manager, ids(8))
    assert why(manager, ids(8)) == (None, None)
    assert why(manager, ids(12)) == ("no match", None)
    assert why(manager, ids(8), limit=0) == ("prompt logprobs asked", None)
    assert why(manager, ids(8), limit=5) == ("prompt logprobs asked", None)
    assert why(manager, ids(8), replace(KEY, adapter="x", kv_dtype="fp8")) == ("key differs", "kv_dtype")
    assert why(manager, ids(8), OTHER) == ("no match", None)
    assert why(manager, ids(8), replace(KEY, namespace=TenantNamespace("a", "salt"))) == ("no match", None)
    serve(manager, ids(24, 100))
    assert why(manager, ids(8)) == ("evicted", None)
    assert why(manager, ids(8), OTHER) == ("no match", None)


def test_an_evicted_prompt_is_known_by_its_own_end_and_by_that_of_its_sequence() -> None:
    manager = make(3)
    tokens = ids(6)
    lease = begin(manager, tokens, final=8)
    advance(manager, lease, tokens)
    tokens.append(6)
    advance(manager, lease, tokens)
    manager.release(lease)
    serve(manager, ids(8, 100))
    assert found(manager, ids(6)) == 4
    assert why(manager, ids(6)) == why(manager, ids(7)) == why(manager, ids(12)) == ("evicted", None)
    assert why(manager, array("i", [0, 1, 2, 3, 9, 9, 9])) == ("no match", None)


def test_what_was_forgotten_is_unknown_in_that_namespace_alone() -> None:
    misses = MissMemory(max_ghosts=4, max_namespaces=2)
    one, two, three = (TenantNamespace(name) for name in "123")
    misses.evicted(one, range(5))
    assert misses.may_have_forgotten(one) and not misses.may_have_forgotten(two)
    assert not misses.was_evicted(one, [0]) and misses.was_evicted(one, [4])
    misses.evicted(two, [7])
    misses.evicted(three, [8])
    assert not misses.was_evicted(one, [4]) and misses.may_have_forgotten(one)  # with all of it
    assert misses.was_evicted(two, [7]) and not misses.may_have_forgotten(two)
    assert not misses.was_evicted(two, [8])


def test_reasons_become_unknown_when_more_was_evicted_than_is_remembered() -> None:
    manager = make(4)
    manager._content._misses._max_ghosts = 3
    serve(manager, ids(8))
    serve(manager, ids(16, 100))
    serve(manager, ids(16, 200))
    assert why(manager, ids(8)) == ("unknown", None)
    assert why(manager, ids(8), OTHER) == ("no match", None)


@pytest.mark.parametrize("neighbour", [ids(8), ids(8, 40), array("i", [0, 1, 2, 3, 9, 9, 9, 9])])
def test_what_a_tenant_sees_does_not_depend_on_what_another_computed(neighbour: array) -> None:
    manager = make(12)
    serve(manager, neighbour, OTHER)
    seen = [why(manager, ids(12)), found(manager, ids(12))]
    serve(manager, ids(8))
    serve(manager, neighbour, OTHER)
    seen += [why(manager, ids(12)), found(manager, ids(12))]
    seen += [why(manager, ids(8), replace(KEY, adapter="x"))]
    assert seen == [("no match", None), 0, ("no match", None), 8, ("key differs", "adapter")]


# Reset and quarantine.


def test_after_a_reset_nothing_is_found_and_running_sequences_keep_what_they_have_to_themselves() -> None:
    manager = make()
    lease = begin(manager, ids(8), final=12)
    advance(manager, lease, ids(8))
    serve(manager, ids(8, 100))
    manager.pin("p", KEY, ids(8, 100), None)
    assert manager.reset_cache() == 2
    assert manager.pins() == [] and found(manager, ids(8)) == found(manager, ids(8, 100)) == 0
    assert why(manager, ids(8)) == why(manager, ids(8, 100)) == ("evicted", None)
    manager.check()
    tokens = ids(12)
    advance(manager, lease, tokens)
    manager.release(lease)
    stats = manager.stats()
    assert (stats.blocks_cached, stats.blocks_free, stats.evictions_reset) == (0, 10, 2)
    assert serve(manager, ids(8)) and found(manager, ids(8)) == 8


def test_from_a_quarantined_block_nothing_new_becomes_findable() -> None:
    manager = make()
    lease = begin(manager, ids(6), final=12)
    advance(manager, lease, ids(6))
    manager.quarantine(lease.blocks[1])
    assert found(manager, ids(6)) == 4
    tokens = ids(12)
    advance(manager, lease, tokens)
    assert found(manager, tokens) == 4
    manager.release(lease)
    manager.check()
    assert manager.stats().blocks_quarantined == 1 and manager.num_blocks == 9


def test_eviction_by_cost_keeps_what_many_read() -> None:
    manager = make(6, eviction="cost", recompute_cost=lambda position: 1.0)
    for last in range(4):
        serve(manager, array("i", [0, 1, 2, 3, 50 + last]))
    for first in (100, 200, 300):
        serve(manager, ids(8, first))
    assert found(manager, ids(4)) == 4
    with pytest.raises(ConfigError, match="eviction='fifo'"):
        make(eviction="fifo")
