"""The arithmetic of benchmarks: on times written down by hand, and on an engine whose steps take one virtual second."""

import os
from typing import Any

import pytest
from fake_llm import FakeLLM

from octavo.cli.bench.driver import Driver
from octavo.cli.bench.layouts import VARIANTS, pool_settings
from octavo.cli.bench.measure import measure, part_shares
from octavo.cli.bench.metrics import Timing, batch_metrics, medians
from octavo.cli.bench.workload import Job, Workload
from octavo.cli.watch import PeakMemory, PoolWatch
from octavo.core.errors import OctavoError


def job(n_in: int, n_out: int, n: int = 1) -> Job:
    return Job(tuple(range(1, n_in + 1)), n_out, n)


def driver_of(llm: FakeLLM) -> Driver:
    return Driver(llm, clock=lambda: llm.engine.now)


def test_a_batch() -> None:
    timings = [Timing(10.0, 11.0, 14.0, 4, (1, 2, 3, 4), 16), Timing(10.0, 13.0, 15.0, 2, (1, 2), 0)]
    figures = batch_metrics([job(20, 4), job(30, 3)], timings)
    assert figures == {
        "wall_s": 5.0,
        "in_tokens": 50,
        "out_tokens": 6,
        "out_tok_s": 1.2,
        "total_tok_s": 11.2,
        "out_tokens_wanted": 7,
        "ttft_s_median": 2.0,
        "ttft_s_max": 3.0,
        "cached_tokens": 16,
    }


def test_a_single_request_has_prefill_and_decode_rates() -> None:
    figures = batch_metrics([job(100, 5)], [Timing(0.0, 2.0, 4.0, 5)])
    assert (figures["ttft_s"], figures["prefill_tok_s"], figures["decode_tok_s"]) == (2.0, 50.0, 2.0)
    assert "decode_tok_s" not in batch_metrics([job(100, 1)], [Timing(0.0, 2.0, 2.0, 1)])


def test_medians_go_into_lists_and_tables() -> None:
    reps: list[dict[str, Any]] = [
        {"a": 1, "l": [1.0, None], "d": {"x": 1.0}, "s": "k", "n": None},
        {"a": 9, "l": [3.0, None], "d": {"x": 5.0}, "s": "k", "n": None},
        {"a": 2, "l": [2.0, 4.0], "d": {"x": 3.0}, "s": "k", "n": 7},
    ]
    assert medians(reps) == {"a": 2, "l": [2.0, 4.0], "d": {"x": 3.0}, "s": "k", "n": 7}


def test_the_driver_times_a_batch() -> None:
    llm = FakeLLM()
    figures, outputs = driver_of(llm).run("batch", [job(8, 2), job(8, 5)])
    assert (figures["wall_s"], figures["ttft_s_median"], figures["out_tokens"]) == (5.0, 1.0, 7)
    assert figures["cached_tokens"] == 32
    assert outputs == [(1, 2), (1, 2, 3, 4, 5)]


def test_a_staged_batch_waits_for_its_first_request() -> None:
    figures, _ = driver_of(FakeLLM()).run("staged", [job(8, 4), job(8, 2), job(8, 3)])
    assert (figures["first_wall_s"], figures["rest_wall_s"], figures["wall_s"]) == (4.0, 3.0, 7.0)
    assert (figures["out_tokens"], figures["rest_ttft_s_median"], figures["cached_tokens"]) == (9, 1.0, 32)


def test_a_session_resends_its_history() -> None:
    llm = FakeLLM()
    sent = []
    queue = llm.engine.add_request
    llm.engine.add_request = lambda request: (sent.append(request.prompt_token_ids), queue(request))[1]  # type: ignore[method-assign]
    figures, outputs = driver_of(llm).run("session", [Job((50, 51), 2), Job((60,), 3)])
    assert sent == [(50, 51), (50, 51, 1, 2, 60)]
    assert figures["in_tokens"] == 7 and figures["turn_out"] == [2, 3] and figures["turn_wall_s"] == [2.0, 3.0]
    assert outputs == [(1, 2), (1, 2, 3)]


def test_parallel_samples_are_drawn_at_temperature_one() -> None:
    llm = FakeLLM()
    seen = []
    queue = llm.engine.add_request
    llm.engine.add_request = lambda request: (seen.append(request.params), queue(request))[1]  # type: ignore[method-assign]
    figures, _ = driver_of(llm).run("parallel", [job(8, 4, 3)])
    assert (figures["n_out"], figures["wall_s"], figures["out_tok_s"]) == (12, 4.0, 3.0)
    assert (seen[0].n, seen[0].temperature, seen[0].ignore_eos) == (3, 1.0, True)


def test_a_failed_request_fails_the_benchmark_and_frees_the_rest() -> None:
    llm = FakeLLM()
    llm.engine.fail = "r1"
    with pytest.raises(OctavoError, match="r1 failed: the step broke"):
        driver_of(llm).run("batch", [job(8, 4), job(8, 4)])
    assert not llm.engine.running


def test_the_pool_is_weighed_by_time() -> None:
    llm = FakeLLM()
    watch = PoolWatch(llm.stats, every=0.0, clock=lambda: llm.engine.now)
    Driver(llm, on_step=watch, clock=lambda: llm.engine.now).send([job(8, 2), job(8, 5)])
    report = watch.report()
    # after steps 1..5: 2, 1, 1, 1, 0 requests, each seen for the second that follows; the last for none
    assert (report["running_mean"], report["running_peak"], report["blocks_leased_peak"]) == (5 / 4, 2, 2)
    assert report["shares"]["useful"] == pytest.approx(5 / 4 / 8 / 2)
    assert sum(report["shares"].values()) == pytest.approx(1.0)
    assert watch.peak_useful == 0.5


def test_the_pool_is_looked_at_no_more_often_than_asked() -> None:
    now = 0.0
    looks = 0

    def stats() -> Any:
        nonlocal looks
        looks += 1
        return FakeLLM().stats()

    watch = PoolWatch(stats, every=0.5, clock=lambda: now)
    for _ in range(20):
        watch()
        now += 0.125
    assert looks == 5


def test_measuring_warms_up_first_and_counts_by_difference() -> None:
    llm = FakeLLM()
    workload = Workload("W", "batch", "two", ((job(8, 2),), (job(8, 4),), (job(8, 3),)))
    record, outputs = measure(llm, workload, reps=2, driver=lambda llm, **more: Driver(llm, clock=lambda: llm.engine.now, **more))
    assert record["wall_s_all"] == [2.0, 4.0] and record["n_reps"] == 2
    assert record["median"]["steps"] == 3  # of 2 and 4; the 8 steps of the warm-up don't count
    assert outputs == [[(1, 2)], [(1, 2, 3, 4)]]
    shares = part_shares(record["median"])
    assert shares["linear"] == pytest.approx(0.75) and shares["outside"] == pytest.approx(0.2)
    assert record["config"]["block_size"] == 16 and record["memory_plan"]["num_blocks"] == 8


def test_layouts_share_one_short_pool() -> None:
    workload = Workload("W", "batch", "", ((job(700, 300), *[job(500, 500)] * 31),))
    assert pool_settings({}, workload) == {"max_model_len": 2048, "num_blocks": 500}  # a quarter of 32,000 tokens
    assert pool_settings({"block_size": 32}, workload)["num_blocks"] == 250
    assert pool_settings({"max_model_len": 8192}, workload)["num_blocks"] == 1024  # two regions of the maximum length
    assert "num_blocks" not in pool_settings({"kv_cache_memory_bytes": 5}, workload)
    assert next(iter(VARIANTS)) == "paged"


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel's mark can't be set back here")
def test_the_peak_of_memory_is_that_of_the_block() -> None:
    before = bytearray(b"x") * (128 << 20)
    del before
    with PeakMemory() as small:
        pass
    with PeakMemory() as large:
        block = bytearray(b"x") * (96 << 20)
        del block
    assert large.peak_mib - small.peak_mib > 90
