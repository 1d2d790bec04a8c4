"""Faults that people who run LLM servers reported, of the kinds "leak" (K02) and "out of memory" (K03), as scenarios."""

import pytest
from driving import Driver, assert_drained, assert_forgotten, make_request, make_scheduler, run_all, run_alone
from plain_index import PlainIndex

from octavo.core.errors import InvalidRequestError


def test_k02_02_used_blocks_return_to_the_baseline_after_every_round() -> None:
    scheduler = make_scheduler(200)
    driver = Driver(scheduler)
    number = 0
    for round_length in (40, 24):
        for _ in range(round_length):
            prompt_len = 16 * (1 + number % 3) + number % 3 - 1  # around multiples of the block
            stops = list(range(0, 997, 5)) if number % 4 == 1 else None
            scheduler.add(make_request(f"r{number}", prompt_len, 8 + number % 9, seed=number, stop_token_ids=stops))
            if number % 4 == 2:
                driver.step()
                scheduler.abort(f"r{number}")
            if number % 4 == 3:
                driver.step()
                scheduler.finish(max(one.seq_id for one in scheduler._population.roster), "stop", "text")
            number += 1
        driver.drain()
    assert {"length", "stop"} <= set(driver.reasons.values())


def test_k02_04_abort_in_the_step_of_the_last_token() -> None:
    """The same end by two paths: the blocks come back once, and the sequence has one end."""
    scheduler = make_scheduler(20)
    driver = Driver(scheduler)
    for number in range(50):
        scheduler.add(make_request(f"r{number}", 17, 2, seed=number))
        driver.step()
        if number % 2:  # the abort comes while the last step is out
            plan = scheduler.schedule()
            assert scheduler.abort(f"r{number}")
            assert scheduler.commit(plan, driver.runner.execute(plan)) == []
            assert_forgotten(scheduler, driver.runner)
        else:  # the abort comes after the end
            driver.step()
            assert driver.reasons[f"r{number}", 0] == "length"
            assert not scheduler.abort(f"r{number}")
        scheduler.check()
        assert_drained(scheduler)


def test_k02_06_a_queued_requests_abort_leaves_the_running_one_alone() -> None:
    for moment in range(1, 20):
        scheduler = make_scheduler(20, max_num_seqs=1)
        driver = Driver(scheduler)
        running, queued = make_request("a", 20, 30, seed=1), make_request("b", 20, 30, seed=2)
        scheduler.add(running)
        scheduler.add(queued)
        for _ in range(moment):
            driver.step()
        assert scheduler.abort("b")
        driver.drain()
        assert driver.tokens == run_alone(running)
        assert driver.reasons == {("a", 0): "length"}


def test_k03_01_what_can_never_fit_is_refused_with_the_usable_tokens() -> None:
    scheduler = make_scheduler(32)  # 512 tokens
    with pytest.raises(InvalidRequestError, match=r"900 tokens.*512 usable tokens.*num_blocks or kv_cache_memory_bytes"):
        scheduler.add(make_request("long", 900, 8))
    with pytest.raises(InvalidRequestError, match=r"max_tokens=100 .*512 usable tokens.*lower max_tokens to 13"):
        scheduler.add(make_request("greedy", 500, 100))
    assert scheduler.max_tokens_that_fit(500) == 13
    assert scheduler.max_tokens_that_fit(512) == 1  # the last token's K and V are never needed
    assert scheduler.max_tokens_that_fit(513) == 0
    assert not scheduler.has_work
    driver = run_all(scheduler, [make_request(f"r{i}", 20, 8, seed=i) for i in range(5)] + [make_request("edge", 500, 13)])
    assert set(driver.reasons.values()) == {"length"} and len(driver.reasons) == 6


def test_k03_02_a_round_of_prompts_larger_than_the_pool_ends_at_once() -> None:
    scheduler = make_scheduler(49)
    first = run_all(scheduler, [make_request(f"a{i}", 5, 50, seed=i) for i in range(10)])
    assert len(first.reasons) == 10
    for i in range(5):
        with pytest.raises(InvalidRequestError, match="784 usable tokens"):
            scheduler.add(make_request(f"b{i}", 1000, 16, seed=i))
    assert not scheduler.has_work
    third = Driver(scheduler)
    third.runner = first.runner
    scheduler.add(make_request("c", 5, 50))
    third.drain()
    assert third.reasons == {("c", 0): "length"}


# 3 full requests are 96 blocks; and the smallest pool, odd ones, and roomy ones.
@pytest.mark.parametrize(("num_blocks", "expected"), [(96, 0.5), (96, 0.0), (33, 0.0), (48, 0.5), (127, 0.0)])
def test_k03_03_preemption_never_turns_into_livelock(num_blocks: int, expected: float) -> None:
    scheduler = make_scheduler(num_blocks)
    scheduler._forecast.output_share = expected  # 0: admission believes that nobody grows
    driver = Driver(scheduler)
    requests = [make_request(f"r{i}", 100, 400, seed=i) for i in range(16)]
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        oldest = scheduler._running[0] if scheduler._running else None
        before = oldest.num_computed if oldest else 0
        plan = driver.step()
        assert not set(plan.released) & {start.seq_id for start in plan.started}, "a victim came back in the step that took its memory"
        if oldest is not None and oldest.lease is not None:
            assert oldest.num_computed > before, "the oldest made no progress"
        assert driver.steps < 16 * 500 * 2
    assert_drained(scheduler)
    stats = scheduler.stats()
    useful = 16 * 499
    assert stats.tokens_computed - stats.tokens_recomputed == useful
    assert stats.tokens_computed / useful <= 2.0  # the report asks for 4
    for request in requests:
        assert len(driver.tokens[request.request_id, 0]) == 400
    assert driver.tokens["r7", 0] == run_alone(requests[7])["r7", 0]


def test_k03_03_conversations_that_grow_all_end() -> None:
    scheduler = make_scheduler(48)
    driver = Driver(scheduler)
    lengths = {f"chat{i}": 50 for i in range(6)}
    for turn in range(4):
        for name, length in lengths.items():
            scheduler.add(make_request(f"{name}-{turn}", length, 120, seed=length))
        driver.drain()
        lengths = {name: length + 150 for name, length in lengths.items()}
    assert len(driver.reasons) == 24
    stats = scheduler.stats()
    assert stats.tokens_computed <= 4 * (stats.tokens_computed - stats.tokens_recomputed)


def test_k03_04_overflow_ends_nobody() -> None:
    """Four chats that may each fill the pool: some wait, all end as they would have alone."""
    scheduler = make_scheduler(32)
    scheduler._forecast.output_share = 0.0
    requests = [make_request(f"r{i}", 153, 300, seed=i) for i in range(4)]
    driver = run_all(scheduler, requests)
    assert scheduler.stats().preemptions > 0
    assert set(driver.reasons.values()) == {"length"}
    for request in requests:
        assert driver.tokens[request.request_id, 0] == run_alone(request)[request.request_id, 0]


def test_k03_05_cached_prefixes_are_evicted_before_anybody_is_preempted() -> None:
    scheduler = make_scheduler(64, prefix_index=PlainIndex(16))
    driver = run_all(scheduler, [make_request(f"old{i}", 128, 1, topic=i) for i in range(8)])
    assert (scheduler.stats().blocks_cached, scheduler.stats().blocks_free) == (64, 0)
    scheduler.add(make_request("large", 920, 8, topic=90))
    driver.drain()
    assert scheduler.stats().preemptions == 0
    for i in range(5):
        scheduler.add(make_request(f"new{i}", 40, 128, topic=91 + i))
    driver.drain()
    assert set(driver.reasons.values()) == {"length"} and len(driver.reasons) == 14


def test_k06_02_and_k06_04_preemption_changes_no_token_and_repeats_none() -> None:
    for first in (1, 15, 16, 17, 40):
        scheduler = make_scheduler(16)
        scheduler._forecast.output_share = 0.0
        old = make_request("old", 256 - 16 * 5, 60, seed=7)
        young = make_request("young", 32, 60, seed=8)
        driver = Driver(scheduler)
        scheduler.add(old)
        scheduler.add(young)
        while len(driver.tokens.get(("young", 0), [])) < first:
            driver.step()
        scheduler._preempt_youngest()
        driver.drain()
        assert scheduler.stats().preemptions > 0
        assert driver.tokens == run_alone(old) | run_alone(young)
