"""The rules of what stays when sequences end: quotas, pins, publications, reasons, reset.  Blocks of four tokens."""

from array import array
from dataclasses import replace

import pytest
from memory_calls import KEY, OTHER, advance, begin, found, ids, make, serve, why

from octavo.core.cache_key import PublishedNamespace, TenantNamespace
from octavo.core.errors import CapacityError, ConfigError, InvalidRequestError
from octavo.kv import PagedKVCache
from octavo.kv.misses import MissMemory

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
