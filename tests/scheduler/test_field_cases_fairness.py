"""Faults that people who run LLM servers reported, of the kinds "starvation" (K04) and "performance cliff" (K12), as scenarios."""

import random
import time

import pytest
from driving import Driver, make_request, make_scheduler, run_all

from octavo.core.plan import Sample, StepResult
from octavo.scheduler import Scheduler


def test_k04_01_a_stream_advances_in_every_step_while_prompts_keep_arriving() -> None:
    draws = random.Random(4)
    scheduler = make_scheduler(200, max_num_batched_tokens=128)
    driver = Driver(scheduler)
    stream = scheduler.add(make_request("stream", 16, 300, seed=1))[0]
    driver.step()
    arrived = 0
    while ("stream", 0) not in driver.reasons:
        if draws.random() < 0.22:  # 500 tokens every 4.5 steps of about 128
            arrived += 1
            scheduler.add(make_request(f"p{arrived}", 500, 1, seed=arrived))
        plan = driver.step()
        assert stream in {chunk.seq_id for chunk in plan.chunks}
    assert arrived > 20
    driver.drain()


def test_k04_03_who_was_preempted_resumes_before_newcomers_of_equal_priority() -> None:
    scheduler = make_scheduler(24)
    scheduler._forecast.output_share = 0.0
    driver = Driver(scheduler)
    preempted: dict[int, int] = {}
    for number in range(30):
        scheduler.add(make_request(f"r{number}", 100, 80, seed=number))
    while scheduler.has_work:
        running = {s.seq_id for s in scheduler._running}
        driver.step()
        for sequence in scheduler._waiting:
            if sequence.seq_id in running:
                preempted[sequence.seq_id] = preempted.get(sequence.seq_id, 0) + 1
        fresh = [s.seq_id for s in scheduler._waiting if s.num_computed_before == 0]
        again = [s.seq_id for s in scheduler._waiting if s.num_computed_before]
        assert not fresh or not again or max(again) < min(fresh)
    assert preempted and max(preempted.values()) <= 3
    stats = scheduler.stats()
    assert stats.tokens_recomputed <= 0.5 * stats.tokens_computed


def head_start(max_overtakes: int) -> tuple[Driver, Scheduler, int]:
    """One request holds 60 % of the pool, the head wants 50 %, eight small ones 5 % each.  Also the head's sequence id."""
    scheduler = make_scheduler(100, max_overtakes=max_overtakes)
    driver = Driver(scheduler)
    scheduler.add(make_request("big", 930, 30, seed=1))
    driver.step()
    head = scheduler.add(make_request("head", 760, 40, seed=2))[0]
    for number in range(8):
        scheduler.add(make_request(f"small{number}", 40, 40, seed=3 + number))
    for _ in range(4):  # the prompts of all eight are more than one step takes beside a stream
        driver.step()
    return driver, scheduler, head


def step_of_start(driver: Driver, seq_id: int) -> int:
    return next(plan.step for plan in driver.runner.plans if seq_id in {start.seq_id for start in plan.started})


def test_k04_04_small_ones_pass_a_head_that_does_not_fit_and_do_not_delay_it() -> None:
    strict, _, head = head_start(0)
    assert not any(name.startswith("small") for name in strict.first_step)
    strict.drain()
    driver, scheduler, _ = head_start(8)
    assert sum(name.startswith("small") for name in driver.first_step) >= 4
    driver.drain()
    assert 0 < scheduler.stats().overtakes <= 8
    assert step_of_start(driver, head) <= step_of_start(strict, head)


def test_k04_04_an_endless_stream_of_small_ones_cannot_keep_the_head_waiting() -> None:
    scheduler = make_scheduler(100)
    driver = Driver(scheduler)
    scheduler.add(make_request("big", 930, 30, seed=1))
    driver.step()
    scheduler.add(make_request("head", 760, 40, seed=2))
    number = 0
    while "head" not in driver.first_step:
        for _ in range(3):
            number += 1
            scheduler.add(make_request(f"small{number}", 40, 100, seed=number))
        driver.step()
        assert driver.steps < 30 + 100 + 5  # those that ran before it have ended by then
    scheduler.abort("head")


def test_k04_04_a_head_is_overtaken_so_often_and_no_more() -> None:
    """Each of these would end long before the head can start, so that only the count stops them."""
    scheduler = make_scheduler(100)
    driver = Driver(scheduler)
    scheduler.add(make_request("big", 900, 200, seed=1))
    driver.step()
    head = scheduler.add(make_request("head", 760, 40, seed=2))[0]
    for number in range(40):
        scheduler.add(make_request(f"small{number}", 20, 2, seed=number))
    while head in {sequence.seq_id for sequence in scheduler._waiting}:
        before = [name for name in driver.first_step if name.startswith("small")]
        driver.step()
    assert scheduler.stats().overtakes == len(before) == 8
    driver.drain()


def test_k04_04_nobody_overtakes_who_would_be_in_the_heads_way() -> None:
    scheduler = make_scheduler(100)
    scheduler._forecast.output_share = 1.0
    driver = Driver(scheduler)
    scheduler.add(make_request("big", 450, 30, seed=1))
    driver.step()
    head = scheduler.add(make_request("head", 1400, 40, seed=2))[0]
    (small,) = scheduler.add(make_request("small", 20, 180, seed=3))  # 13 blocks: they are free now, but not beside the head
    (smaller,) = scheduler.add(make_request("smaller", 20, 60, seed=4))  # 5 blocks
    driver.drain()
    assert [step_of_start(driver, seq_id) for seq_id in (smaller, head)] == [2, 31]
    assert step_of_start(driver, small) > 31


def test_a_head_that_waits_for_a_place_is_not_overtaken() -> None:
    scheduler = make_scheduler(100, max_num_seqs=2)
    driver = run_all(scheduler, [make_request(f"r{i}", 20, 10, seed=i) for i in range(10)])
    assert scheduler.stats().overtakes == 0
    firsts = [driver.first_step[f"r{i}"] for i in range(10)]
    assert firsts == sorted(firsts)


def test_half_computed_prompts_never_lock_each_other_out() -> None:
    """Two prompts that fill the pool together start together; a third waits, though blocks are free while they are computed."""
    scheduler = make_scheduler(40, max_num_batched_tokens=32)
    driver = Driver(scheduler)
    for number in range(5):
        scheduler.add(make_request(f"r{number}", 300, 4, seed=number))
    driver.drain()
    assert scheduler.stats().preemptions == 0


def test_lower_priority_numbers_go_first_and_yield_last() -> None:
    scheduler = make_scheduler(40, max_num_seqs=1)
    driver = Driver(scheduler)
    for name, priority in (("late", 5), ("plain", 0), ("urgent", -5), ("plain2", 0)):
        scheduler.add(make_request(name, 20, 3, priority=priority))
    driver.drain()
    assert sorted(driver.first_step, key=driver.first_step.__getitem__) == ["urgent", "plain", "plain2", "late"]

    scheduler = make_scheduler(16)
    scheduler._forecast.output_share = 0.0
    driver = Driver(scheduler)
    for name, priority in (("a", 1), ("b", 0), ("c", 2)):
        scheduler.add(make_request(name, 64, 60, priority=priority, seed=priority))
    driver.drain()
    assert scheduler.stats().preemptions > 0
    ends = [update.request_id for update in driver.updates if update.finish_reason]
    assert ends == ["b", "a", "c"]


class Timed:
    """Steady decoding with a runner that costs nothing: the middle of many steps, in seconds."""

    def __init__(self, num_seqs: int, prompt_len: int) -> None:
        self.scheduler = make_scheduler(num_seqs * (prompt_len // 16 + 40), max_num_batched_tokens=4096)
        for number in range(num_seqs):
            self.scheduler.add(make_request(f"r{number}", prompt_len, 500, seed=number))
        while True:
            self.step()
            if not self.scheduler._waiting and all(s.num_behind == 1 for s in self.scheduler._running):
                break

    def step(self) -> float:
        begin = time.perf_counter()
        plan = self.scheduler.schedule()
        middle = time.perf_counter()
        result = StepResult({chunk.seq_id: Sample(1) for chunk in plan.chunks if chunk.sample}, 0.01)
        again = time.perf_counter()
        self.scheduler.commit(plan, result)
        return time.perf_counter() - again + middle - begin


def test_k12_05_a_steps_overhead_does_not_grow_with_the_context() -> None:
    short, long = Timed(64, 128), Timed(64, 4096)
    times: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(60):
        times["short"].append(short.step())
        times["long"].append(long.step())
    assert sorted(times["long"])[20] < 2 * sorted(times["short"])[20]


def test_k12_05_a_decode_step_hands_over_only_what_changed() -> None:
    scheduler = make_scheduler(200)
    driver = Driver(scheduler)
    for number in range(4):
        scheduler.add(make_request(f"r{number}", 130, 40, seed=number))
    driver.step()
    handed = 0
    for _ in range(32):
        plan = driver.step()
        assert plan.num_tokens == 4 and not plan.started
        handed += sum(len(chunk.new_blocks) for chunk in plan.chunks)
    assert handed == 4 * 2


@pytest.mark.parametrize("num_waiting", [10, 1000])
def test_a_long_queue_is_not_walked_in_a_step(num_waiting: int) -> None:
    """Only the head and those that may pass it are looked at."""
    scheduler = make_scheduler(40)
    driver = Driver(scheduler)
    for number in range(num_waiting):
        scheduler.add(make_request(f"r{number}", 300, 30, seed=number))
    looked_at = 0
    match = scheduler._manager.match

    def counting(*arguments):  # type: ignore[no-untyped-def]
        nonlocal looked_at
        looked_at += 1
        return match(*arguments)

    scheduler._manager.match = counting  # type: ignore[method-assign]
    for _ in range(5):
        driver.step()
    assert looked_at <= 5 * 11
