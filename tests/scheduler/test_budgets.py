"""The two things that the scheduler learns: how fast prompts are computed, and how long outputs get."""

import random

import pytest

from octavo.scheduler.chunk_budget import FIRST_CHUNK, LEAST_CHUNK, ChunkBudget
from octavo.scheduler.forecast import FIRST_SHARE, Forecast, join


def step(budget: ChunkBudget, streams: int, prompt: int, speed: float, per_stream: float) -> float:
    """Let a machine with these speeds do a step; its seconds."""
    elapsed = 0.005 + streams * per_stream + prompt / speed
    budget.observe(streams, prompt, elapsed)
    return elapsed


def test_alone_a_prompt_gets_the_whole_step() -> None:
    budget = ChunkBudget(2048, 0.1)
    assert budget.tokens(0) == 2048
    step(budget, 0, 2048, speed=100.0, per_stream=0.001)
    assert budget.tokens(0) == 2048


@pytest.mark.parametrize("speed", [300.0, 1500.0, 8000.0])
@pytest.mark.parametrize("streams", [1, 32])
def test_beside_streams_a_step_comes_to_the_target(speed: float, streams: int) -> None:
    budget = ChunkBudget(2048, 0.1)
    step(budget, 0, 2048, speed, 0.001)
    for _ in range(5):
        step(budget, streams, 0, speed, 0.001)
    for _ in range(40):
        elapsed = step(budget, streams, budget.tokens(streams), speed, 0.001)
    assert 0.05 < elapsed <= 0.11


def test_a_change_of_speed_is_followed() -> None:
    budget = ChunkBudget(2048, 0.1)
    for _ in range(30):
        step(budget, 4, budget.tokens(4), 4000.0, 0.001)
    before = budget.tokens(4)
    for _ in range(120):
        step(budget, 4, budget.tokens(4), 400.0, 0.001)
    assert LEAST_CHUNK <= budget.tokens(4) < before / 4


def test_a_prompt_always_advances_and_never_takes_a_streams_place() -> None:
    slow = ChunkBudget(2048, 0.1)
    for _ in range(20):
        step(slow, 64, LEAST_CHUNK, 20.0, 0.1)
    assert slow.tokens(64) >= LEAST_CHUNK
    narrow = ChunkBudget(8, 0.1)
    assert [narrow.tokens(streams) for streams in (0, 3, 7)] == [8, 5, 1]
    assert ChunkBudget(2048, 0.1).tokens(1) == FIRST_CHUNK


def test_one_disturbed_step_moves_nothing() -> None:
    budget = ChunkBudget(2048, 0.1)
    for _ in range(30):
        step(budget, 4, budget.tokens(4), 1000.0, 0.001)
        step(budget, 4, 0, 1000.0, 0.001)
    calm = budget.tokens(4)
    budget.observe(4, calm, 5.0)
    budget.observe(4, 0, 5.0)
    assert budget.tokens(4) == pytest.approx(calm, abs=2 * LEAST_CHUNK)


def test_a_step_is_stretched_by_how_many_wait_and_never_beyond_three_targets() -> None:
    budget = ChunkBudget(4096, 0.1)
    for _ in range(30):
        step(budget, 10, budget.tokens(10), 1000.0, 0.0)
        step(budget, 10, 0, 1000.0, 0.0)
    one, few, many = (step(budget, 10, budget.tokens(10, behind), 1000.0, 0.0) for behind in (1, 10, 1000))
    assert 0.09 <= one <= 0.12 and 0.18 <= few <= 0.21 and 0.27 <= many <= 0.31


def peak_by_walking(members: list[tuple[int, int]]) -> int:
    """The definition: all grow by one token a step, and each goes when it has nothing left."""
    peak, now = 0, 0
    while any(left >= now for left, _ in members):
        peak = max(peak, sum(held + now for left, held in members if left >= now))
        now += 1
    return peak


def test_the_peak_is_the_most_that_is_held_at_once() -> None:
    draws = random.Random(1)
    for _ in range(200):
        members = sorted((draws.randrange(30), draws.randrange(50)) for _ in range(draws.randrange(1, 8)))
        assert Forecast().peak(members) == peak_by_walking(members)
    assert Forecast().peak([]) == 0


def test_members_that_keep_their_memory_add_up() -> None:
    assert Forecast(releases_at_end=False).peak([(1, 10), (5, 20)]) == 36
    assert Forecast(releases_at_end=False).left(40) == 40


def test_join_keeps_the_order_and_the_original() -> None:
    members = [(1, 9), (4, 2)]
    assert join(members, (3, 3)) == [(1, 9), (3, 3), (4, 2)]
    assert members == [(1, 9), (4, 2)]


def test_the_expected_length_follows_what_is_seen() -> None:
    forecast = Forecast()
    assert forecast.output_share == FIRST_SHARE and forecast.left(100) == 50 and forecast.left(1) == 1
    for _ in range(60):
        forecast.observe_end(10, 100)
    assert forecast.output_share == pytest.approx(0.1, abs=0.01)
    for _ in range(60):
        forecast.observe_shortage()
    assert forecast.output_share == pytest.approx(1.0, abs=0.01)
