"""The reserved layouts, and the shares of the pool that both layouts report."""

from array import array

import pytest
from plain_index import PlainIndex

from octavo.core.cache_key import CacheKey
from octavo.core.errors import ConfigError, InvariantError
from octavo.core.stats import MemoryStats
from octavo.kv import KVCacheManager, Lease, make_kv_cache

KEY = CacheKey()


def make(kv_layout: str, num_blocks: int, reserve: str = "max", block_size: int = 16, max_model_len: int = 128) -> KVCacheManager:
    return make_kv_cache(
        num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len, kv_layout=kv_layout, reserve=reserve
    )


def fits(manager: KVCacheManager, num_tokens: int, prompt_len: int, final_tokens: int, promised: int = 0) -> bool:
    """Whether a sequence fits of which nothing is found."""
    return manager.fit(manager.match(KEY, array("i", [-1]), 1), num_tokens, prompt_len, final_tokens, promised) is not None


def open_lease(manager: KVCacheManager, prompt_len: int, final_tokens: int, written: int) -> Lease:
    tokens = array("i", range(final_tokens))
    match = manager.fit(manager.match(KEY, tokens, final_tokens), prompt_len, prompt_len, final_tokens, 0)
    assert match is not None
    lease = manager.open(match, prompt_len, final_tokens)
    assert lease is not None
    assert manager.grow(lease, written)
    manager.commit(lease, tokens, written)
    return lease


def shares(stats: MemoryStats) -> tuple[int, int, int, int, int]:
    parts = (stats.tokens_useful, stats.tokens_reserved, stats.tokens_internal, stats.tokens_external, stats.tokens_free)
    assert sum(parts) + stats.tokens_out_of_service == stats.tokens_total
    return parts


def test_paged_wastes_less_than_a_block_of_a_sequence() -> None:
    manager = make("paged", 16)
    open_lease(manager, 20, 40, 20)
    assert shares(manager.stats()) == (20, 12, 0, 0, 224)
    open_lease(manager, 20, 20, 20)
    assert shares(manager.stats()) == (40, 12, 12, 0, 192)


@pytest.mark.parametrize(
    ("reserve", "useful", "reserved", "internal", "external"),
    [
        # 20 prompt tokens and up to 25 of output: 45, of which 24 are written.
        ("max", 24, 21, 128 - 45, 0),
        ("pow2", 24, 21, 64 - 45, 0),  # 20 + 32 = 52 tokens are 4 blocks
        ("oracle", 24, 21, 48 - 45, 16),  # 3 blocks, of a run of 4: the rounding is outside the region
    ],
)
def test_shares_of_the_three_reservations(reserve: str, useful: int, reserved: int, internal: int, external: int) -> None:
    manager = make("reserved", 16, reserve)
    lease = open_lease(manager, 20, 45, 24)
    assert lease.blocks == list(range(lease.blocks[0], lease.blocks[0] + len(lease.blocks)))
    assert shares(manager.stats())[:4] == (useful, reserved, internal, external)


def test_reserve_max_fits_seven_of_the_papers_requests_and_leaves_its_external_share() -> None:
    """SOSP 2023, figures 2 and 13: OPT-13B, 15,728 places, regions of 2,048: 7 requests at once, 8.9 % external."""
    manager = make("reserved", 983, max_model_len=2048)
    for _ in range(7):
        open_lease(manager, 100, 400, 100)
    assert not fits(manager, 100, 100, 400)
    stats = manager.stats()
    assert stats.tokens_external / stats.tokens_total == pytest.approx(0.0885, abs=0.001)


def test_free_runs_too_short_for_who_was_refused_are_external_until_it_is_served() -> None:
    manager = make("reserved", 8, "oracle")
    held = [open_lease(manager, 32, 32, 32) for _ in range(4)]
    manager.release(held[0])
    manager.release(held[2])
    assert not fits(manager, 64, 64, 64)
    assert shares(manager.stats()) == (64, 0, 0, 64, 0)
    manager.release(held[1])
    open_lease(manager, 64, 64, 64)
    assert shares(manager.stats()) == (96, 0, 0, 0, 32)


@pytest.mark.parametrize("kv_layout", ["paged", "reserved"])
def test_memory_kept_after_the_end_is_internal_waste_until_released(kv_layout: str) -> None:
    manager = make(kv_layout, 16)
    lease = open_lease(manager, 20, 40, 20)
    held = lease.room
    manager.keep(lease)
    useful, reserved, internal, _, _ = shares(manager.stats())
    assert (useful, reserved, internal) == (0, 0, held)
    manager.release(lease)
    manager.release(lease)  # idempotent
    assert manager.stats().blocks_free == 16
    manager.check()


def test_a_region_never_grows_and_max_must_fit_once() -> None:
    manager = make("reserved", 16)
    lease = open_lease(manager, 20, 40, 20)
    assert manager.grow(lease, 128)
    with pytest.raises(InvariantError, match="reserved for 128"):
        manager.grow(lease, 129)
    with pytest.raises(ConfigError, match="lower max_model_len, or raise num_blocks"):
        make("reserved", 15, max_model_len=256)
    with pytest.raises(ConfigError, match="reserve='best'"):
        make("reserved", 16, "best")
    with pytest.raises(ConfigError, match="kv_layout='heap'"):
        make("heap", 16)


@pytest.mark.parametrize("reserve", ["max", "pow2", "oracle"])
@pytest.mark.parametrize("kv_layout", ["paged", "reserved"])
def test_usable_tokens_is_exactly_what_fits_alone(kv_layout: str, reserve: str) -> None:
    for num_blocks in (8, 9, 13):
        manager = make(kv_layout, num_blocks, reserve)
        for prompt_len in (1, 15, 16, 17, 60, 100, 127):
            usable = manager.usable_tokens(prompt_len)
            assert usable >= prompt_len
            assert fits(manager, usable, prompt_len, usable)
            if kv_layout == "paged" or (reserve != "max" and usable < 128):
                assert not fits(manager, usable + 1, prompt_len, usable + 1)


def test_what_is_shared_need_not_be_available_and_what_is_promised_is_not() -> None:
    manager = make_kv_cache(num_blocks=6, block_size=4, max_model_len=24, prefix_index=PlainIndex(4))
    first = open_lease(manager, 16, 17, 16)  # four blocks, all full
    assert manager.grow(first, 17)  # and a fifth, empty one
    tokens = array("i", range(17))
    match = manager.match(KEY, tokens, 17)
    assert match.blocks == tuple(first.blocks[:4]) and match.num_tokens == 16
    assert manager.fit(match, 17, 17, 17, promised=0) is match  # four are leased already, one is available
    assert manager.fit(match, 17, 17, 17, promised=1) is None
    assert manager.fit(match, 21, 17, 21, promised=0) is None
    manager.release(first)
    match = manager.match(KEY, tokens, 17)
    assert manager.num_unheld(match) == 4
    assert manager.fit(match, 17, 17, 17, promised=1) is match
    assert manager.fit(match, 17, 17, 17, promised=2) is None  # the cached ones that it takes are available no more


def test_the_reserved_layout_shares_nothing_and_says_which_setting_does() -> None:
    manager = make("reserved", 16)
    lease = open_lease(manager, 20, 40, 20)
    tokens = array("i", range(40))
    assert not manager.can_fork
    for refused in (
        lambda: manager.fork(lease, 20, 40),
        lambda: manager.publish("p", KEY, tokens, None),
        lambda: manager.pin("p", KEY, tokens, None),
    ):
        with pytest.raises(ConfigError, match="kv_layout='paged'"):
            refused()
    assert (manager.unpublish("p"), manager.unpin("p"), manager.pins(), manager.reset_cache()) == (False, False, [], 0)
    assert manager.why_missed(KEY, tokens, manager.match(KEY, tokens, 40)).reason == "no match"
    with pytest.raises(ConfigError, match="prefix_index='tree'"):
        make_kv_cache(num_blocks=4, block_size=4, max_model_len=16, prefix_index="tree")
