"""The scheduler's rules one by one: ends, drops, samples, prompt logprobs, static batching, failures, settings."""

from dataclasses import replace

import pytest
from driving import Driver, assert_drained, make_request, make_scheduler, run_all, run_alone
from null_runner import token_at
from plain_index import PlainIndex

from octavo.core.errors import ConfigError, InvalidRequestError, InvariantError
from octavo.core.plan import Sample, StepPlan, StepResult
from octavo.kv import PagedKVCache
from octavo.scheduler import Scheduler


def sample_all(plan: StepPlan, token: int) -> StepResult:
    return StepResult({chunk.seq_id: Sample(token) for chunk in plan.chunks if chunk.sample}, 0.01)


def test_a_dropped_plan_is_handed_out_again() -> None:
    scheduler = make_scheduler(40)
    driver = Driver(scheduler)
    scheduler.add(make_request("gone", 20, 50, seed=1))
    driver.step()
    scheduler.abort("gone")
    scheduler.add(make_request("a", 40, 5, seed=2))
    dropped = scheduler.schedule()
    scheduler.drop(dropped)
    scheduler.check()
    scheduler.add(make_request("b", 33, 5, seed=3))
    plan = driver.step()
    assert dropped.released == plan.released == (0,)
    assert dropped.started[0] == plan.started[0] and len(plan.started) == 2
    assert dropped.chunks[0] == plan.chunks[0] and len(plan.chunks[0].new_blocks) == 3
    driver.drain()
    assert driver.tokens["a", 0] == run_alone(make_request("a", 40, 5, seed=2))["a", 0]


def test_who_was_preempted_in_a_dropped_plan_is_released_by_the_next() -> None:
    scheduler = make_scheduler(4)
    scheduler._forecast.output_share = 0.0
    driver = Driver(scheduler)
    for name in "ab":
        scheduler.add(make_request(name, 16, 40, seed=ord(name)))
    while scheduler.stats().preemptions == 0:
        plan = scheduler.schedule()
        scheduler.drop(plan)
        again = driver.step()
        assert plan.released == again.released and plan.chunks == again.chunks
    driver.drain()
    assert len(driver.tokens["b", 0]) == 40


def test_one_plan_is_out_at_a_time() -> None:
    scheduler = make_scheduler(4)
    scheduler.add(make_request("a", 4, 4))
    plan = scheduler.schedule()
    with pytest.raises(InvariantError, match="neither committed nor dropped"):
        scheduler.schedule()
    scheduler.drop(plan)
    with pytest.raises(InvariantError, match="no step is out"):
        scheduler.commit(plan, sample_all(plan, 1))
    assert scheduler.abort("a") and not scheduler.abort("a")


def test_ends_by_stop_token_min_tokens_and_length() -> None:
    def ends(token: int, **params: int) -> list[tuple[str, int | str | None, int]]:
        scheduler = make_scheduler(10)
        request = make_request("r", 3, 4, stop_token_ids=[7], **params)
        # 9 is an end of the model's own.
        request = type(request)(request.request_id, request.prompt_token_ids, request.params, 4, 0, request.stop_token_ids | {9})
        scheduler.add(request)
        out, count = [], 0
        while scheduler.has_work:
            plan = scheduler.schedule()
            for update in scheduler.commit(plan, sample_all(plan, token)):
                count += update.token_id is not None
                if update.finish_reason:
                    out.append((update.finish_reason, update.stop_reason, count))
        return out

    assert ends(5) == [("length", None, 4)]
    assert ends(7) == [("stop", 7, 1)]
    assert ends(9) == [("stop", None, 1)]
    assert ends(7, min_tokens=2) == [("stop", 7, 3)]


def test_samples_of_one_request_are_sequences_of_their_own() -> None:
    request = make_request("r", 20, 6, seed=3, n=4)
    driver = run_all(make_scheduler(40), [request])
    assert driver.tokens == {("r", i): [token_at(3, i, 20 + k) for k in range(6)] for i in range(4)}
    assert len({tuple(tokens) for tokens in driver.tokens.values()}) == 4


def test_an_id_in_use_is_refused_until_all_its_samples_have_ended() -> None:
    scheduler = make_scheduler(40)
    first, _ = scheduler.add(make_request("r", 4, 4, n=2))
    with pytest.raises(InvalidRequestError, match="in use"):
        scheduler.add(make_request("r", 4, 4))
    assert scheduler.finish(first, "stop", "text") is not None
    with pytest.raises(InvalidRequestError, match="in use"):
        scheduler.add(make_request("r", 4, 4))
    assert scheduler.abort("r")
    scheduler.add(make_request("r", 4, 4))


def test_a_request_that_cannot_be_queued_leaves_nothing() -> None:
    scheduler = make_scheduler(40)
    scheduler.add(make_request("a", 4, 4))
    with pytest.raises(TypeError):
        scheduler.add(make_request("b", 4, 4, n=2, priority="urgent"))  # type: ignore[arg-type]
    scheduler.check()
    assert not scheduler.abort("b")
    assert scheduler.add(make_request("b", 4, 4)) == [1]


def test_an_answer_ended_by_a_stop_string_teaches_the_forecast() -> None:
    scheduler = make_scheduler(40)
    driver = Driver(scheduler)
    ids = [scheduler.add(make_request(name, 4, 40))[0] for name in ("stopped", "aborted")]
    driver.step()
    before = scheduler.stats().output_share
    scheduler.finish(ids[1], "abort")
    assert scheduler.stats().output_share == before
    scheduler.finish(ids[0], "stop", "text")
    assert scheduler.stats().output_share < before


def test_a_failing_sequence_ends_alone() -> None:
    scheduler = make_scheduler(40)
    driver = Driver(scheduler)
    ids = [scheduler.add(make_request(f"r{i}", 20, 5, seed=i))[0] for i in range(3)]
    driver.step()
    driver.runner.failing = {ids[1]}
    driver.drain()
    assert driver.reasons == {("r0", 0): "length", ("r1", 0): "error", ("r2", 0): "length"}
    assert next(update.error for update in driver.updates if update.finish_reason == "error") == "made to fail"


def test_a_runner_that_forgets_a_sample_ends_that_sequence_with_an_error() -> None:
    scheduler = make_scheduler(40)
    scheduler.add(make_request("r", 20, 5))
    plan = scheduler.schedule()
    (update,) = scheduler.commit(plan, StepResult({}, 0.01))
    assert update.finish_reason == "error" and "sample None" in (update.error or "")
    assert_drained(scheduler)


@pytest.mark.parametrize("max_num_batched_tokens", [7, 64])
def test_prompt_logprobs_come_once_and_in_order_whatever_is_preempted(max_num_batched_tokens: int) -> None:
    for preempt_after in (1, 3, 8):
        scheduler = make_scheduler(40, max_num_batched_tokens=max_num_batched_tokens)
        driver = Driver(scheduler)
        request = make_request("r", 50, 4, seed=5, prompt_logprobs=1)
        scheduler.add(request)
        for _ in range(preempt_after):
            driver.step()
        if scheduler._running:
            scheduler._preempt_youngest()
        scheduler._chunk_budget._max_tokens += 3  # so that chunks end elsewhere the second time
        driver.drain()
        scored = [entry.token_id for update in driver.updates for entry in update.prompt_logprobs]
        assert scored == list(request.prompt_token_ids[1:])
        asked = sum(chunk.prompt_rows for plan in driver.runner.plans for chunk in plan.chunks)
        assert asked == 49


def test_the_prompt_is_scored_once_for_all_samples() -> None:
    request = make_request("r", 20, 2, seed=5, prompt_logprobs=0, n=3)
    driver = run_all(make_scheduler(12), [request])
    scored = {i: [e.token_id for u in driver.updates if u.sample_index == i for e in u.prompt_logprobs] for i in range(3)}
    assert scored == {0: list(request.prompt_token_ids[1:]), 1: [], 2: []}


def test_a_prompt_of_one_token_owes_no_prompt_logprobs() -> None:
    driver = run_all(make_scheduler(4), [make_request("r", 1, 2, prompt_logprobs=0)])
    assert [update.prompt_logprobs for update in driver.updates] == [(), ()]


@pytest.mark.parametrize("kv_layout", ["paged", "reserved"])
def test_a_static_batch_runs_to_its_end_and_keeps_its_memory(kv_layout: str) -> None:
    scheduler = make_scheduler(16, batching="static", kv_layout=kv_layout, max_model_len=64)
    driver = Driver(scheduler)
    outputs = [2, 30, 5, 40, 3, 3]
    for i, max_tokens in enumerate(outputs):
        scheduler.add(make_request(f"r{i}", 16, max_tokens, seed=i))
    driver.step()
    batch = scheduler.stats().running
    assert batch >= 4
    leased = scheduler.stats().blocks_leased
    while any((f"r{i}", 0) not in driver.reasons for i in range(batch)):
        assert not any((f"r{i}") in driver.first_step for i in range(batch, 6)), "a newcomer joined a running static batch"
        assert scheduler.stats().blocks_leased >= leased
        driver.step()
    assert driver.steps == 40
    driver.drain()
    assert set(driver.reasons.values()) == {"length"}


def test_static_takes_more_steps_than_continuous_and_reserving_more_than_paging() -> None:
    """What paging and continuous batching replaced, in steps of the same traffic."""
    requests = [make_request(f"r{i}", 20 + 7 * i % 60, 10 + 37 * i % 90, seed=i) for i in range(40)]

    def steps(**settings: str) -> int:
        return run_all(make_scheduler(64, max_model_len=256, **settings), requests).steps

    paged = steps()
    oracle, pow2, whole = (steps(kv_layout="reserved", reserve=reserve) for reserve in ("oracle", "pow2", "max"))
    assert paged < oracle <= pow2 < whole
    assert steps(kv_layout="reserved", reserve="max", batching="static") > whole


def test_the_chunk_budget_never_exceeds_what_a_step_holds_and_running_never_what_it_serves() -> None:
    scheduler = make_scheduler(40, max_num_batched_tokens=3, max_num_seqs=64)
    driver = Driver(scheduler)
    for i in range(6):
        scheduler.add(make_request(f"r{i}", 10, 10, seed=i))
    while scheduler.has_work:
        plan = driver.step()
        assert plan.num_tokens <= 3 and scheduler.stats().running <= 3


def test_what_no_longer_fits_a_shrunken_pool_is_answered() -> None:
    manager = PagedKVCache(8, 16, make_scheduler(1)._manager._index)  # type: ignore[attr-defined]
    scheduler = Scheduler(manager)
    driver = Driver(scheduler)
    scheduler.add(make_request("r", 120, 8))
    manager.quarantine(3)
    driver.step()
    assert driver.reasons == {("r", 0): "error"}
    assert "112 usable tokens" in (driver.updates[-1].error or "")
    assert not scheduler.has_work


def test_settings_are_checked() -> None:
    for wrong in ({"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"batching": "dynamic"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            make_scheduler(4, **wrong)


def test_stats_carry_the_memory_and_the_counts() -> None:
    scheduler = make_scheduler(16)
    driver = Driver(scheduler)
    scheduler.add(make_request("r", 20, 8))
    driver.step()
    stats = scheduler.stats()
    assert (stats.blocks_total, stats.blocks_leased, stats.running, stats.waiting) == (16, 2, 1, 0)
    assert (stats.tokens_useful, stats.tokens_reserved, stats.tokens_internal) == (20, 7, 5)
    assert stats.as_dict()["tokens_computed"] == 20


def test_nobody_enters_in_a_step_in_which_memory_was_short() -> None:
    """Not even a small one that the victim's memory would hold: it would be the next victim."""
    scheduler = make_scheduler(20)
    scheduler._forecast.output_share = 0.0
    driver = Driver(scheduler)
    scheduler.add(make_request("old", 144, 40, seed=1))
    scheduler.add(make_request("young", 152, 40, seed=2))
    driver.step()
    scheduler.add(make_request("small", 40, 4, seed=3))  # three blocks, and one is free
    while not scheduler.stats().preemptions:
        plan = driver.step()
    assert scheduler.stats().waiting == 2 and not plan.started
    assert driver.step().started[0].prompt_len == 40
    driver.drain()


def test_a_full_hit_computes_its_last_token_and_writes_nothing() -> None:
    scheduler = make_scheduler(16, prefix_index=PlainIndex(16))
    driver = run_all(scheduler, [make_request("first", 32, 3, seed=1)])
    scheduler.add(make_request("again", 32, 3, seed=1))
    (chunk,) = driver.step().chunks
    assert (chunk.start, len(chunk.tokens), chunk.write, len(chunk.new_blocks)) == (31, 1, False, 2)
    (chunk,) = driver.step().chunks
    assert (chunk.start, chunk.write, len(chunk.new_blocks)) == (32, True, 1)
    driver.drain()
    assert driver.tokens["again", 0] == driver.tokens["first", 0]
    assert {update.cache.num_tokens for update in driver.updates if update.request_id == "again"} == {31}


def test_a_hit_never_hides_prompt_logprobs_that_are_owed() -> None:
    scheduler = make_scheduler(16, prefix_index=PlainIndex(16))
    run_all(scheduler, [make_request("first", 40, 3, seed=1)])
    driver = Driver(scheduler)
    request = make_request("scored", 40, 3, seed=1, prompt_logprobs=0)
    scheduler.add(request)
    plan = driver.step()
    assert [chunk.start for chunk in plan.chunks] == [0]
    assert [entry.token_id for entry in driver.updates[0].prompt_logprobs] == list(request.prompt_token_ids[1:])
    driver.drain()


def test_the_runner_is_told_everything_that_sampling_depends_on() -> None:
    request = replace(make_request("r", 4, 3, seed=9, stop_token_ids=[7], n=2), bad_words_ids=((5,), (6, 8)))
    scheduler = make_scheduler(8)
    scheduler.add(request)
    for index, start in enumerate(scheduler.schedule().started):
        assert (start.tokens, start.prompt_len, start.sample_index) == (request.prompt_token_ids, 4, index)
        assert (start.params, start.seed) == (request.params, request.seed)
        assert (start.stop_token_ids, start.bad_words_ids) == (request.stop_token_ids, request.bad_words_ids)
