"""Requests, schedulers and the loop that drives them to their end, for tests that compute nothing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from null_runner import NullRunner

from octavo.core.params import BeamSearchParams, SamplingParams
from octavo.core.plan import StepPlan
from octavo.core.request import Request
from octavo.kv import PrefixIndex, make_kv_cache
from octavo.scheduler import Scheduler, SequenceUpdate
from octavo.scheduler.beams import BeamSearch


def make_request(
    name: str, prompt_len: int, max_tokens: int, *, seed: int = 0, topic: int | None = None, priority: int = 0, **params: Any
) -> Request:
    """A request whose prompt differs for each topic (the seed, if not given), and is a prefix of every longer one with the same."""
    topic = seed if topic is None else topic
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    return Request(
        request_id=name,
        prompt_token_ids=tuple((topic + 31 * i) % 997 for i in range(prompt_len)),
        params=sampling,
        max_tokens=max_tokens,
        seed=seed,
        stop_token_ids=frozenset(sampling.stop_token_ids or ()),
        priority=priority,
    )


def make_beam_request(
    name: str, prompt_len: int, max_tokens: int, width: int, *, topic: int = 0, priority: int = 0, stop_token_ids: Iterable[int] = ()
) -> Request:
    """As `make_request`, for a beam search that returns all its hypotheses."""
    beam = BeamSearchParams(beam_width=width, max_tokens=max_tokens, ignore_eos=True)
    stops = frozenset(stop_token_ids)
    return replace(
        make_request(
            name,
            prompt_len,
            max_tokens,
            topic=topic,
            priority=priority,
            n=width,
            temperature=0.0,
            logprobs=BeamSearch(beam, max_tokens, stops).candidates_per_beam,
        ),
        beam=beam,
        stop_token_ids=stops,
    )


def make_scheduler(
    num_blocks: int,
    block_size: int = 16,
    kv_layout: str = "paged",
    reserve: str = "max",
    max_model_len: int = 64,
    prefix_index: str | PrefixIndex | None = None,
    **settings: Any,
) -> Scheduler:
    manager = make_kv_cache(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        kv_layout=kv_layout,
        reserve=reserve,
        prefix_index=prefix_index,
    )
    return Scheduler(manager, **settings)


class Driver:
    """Steps a scheduler with a NullRunner, checks every law after each step, and collects what comes out.

    tokens, reasons: by (request id, sample index).  steps: how many were taken.  first_step: in which a request's first token came.
    """

    def __init__(self, scheduler: Scheduler, block_size: int = 16) -> None:
        self.scheduler = scheduler
        self.runner = NullRunner(block_size)
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        self.updates: list[SequenceUpdate] = []
        self.first_step: dict[str, int] = {}
        self.steps = 0

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.scheduler.check()
        updates = self.scheduler.commit(plan, self.runner.execute(plan))
        self.scheduler.check()
        self.steps += 1
        for update in updates:
            key = (update.request_id, update.sample_index)
            assert key not in self.reasons, f"{key} had ended, but got {update}"
            if update.token_id is not None:
                self.tokens.setdefault(key, []).append(update.token_id)
                self.first_step.setdefault(update.request_id, self.steps)
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason
        self.updates += updates
        return plan

    def drain(self, most_steps: int = 10_000, before_step: Callable[["Driver"], None] | None = None) -> None:
        """Step until nothing is left; fails when that takes more than `most_steps`."""
        last = self.steps + most_steps
        while self.scheduler.has_work:
            if before_step is not None:
                before_step(self)
            assert self.steps < last, f"not drained after {most_steps} steps: {self.scheduler.stats()}"
            self.step()
        assert_drained(self.scheduler)
        assert_forgotten(self.scheduler, self.runner)


def assert_drained(scheduler: Scheduler) -> None:
    stats = scheduler.stats()
    assert not scheduler.has_work
    assert (stats.waiting, stats.running, stats.blocks_leased) == (0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


def assert_forgotten(scheduler: Scheduler, runner: NullRunner) -> None:
    """The next plan, an empty one, makes the runner forget the last sequences."""
    plan = scheduler.schedule()
    scheduler.commit(plan, runner.execute(plan))
    assert not plan.chunks and not runner.rows


def run_alone(request: Request, block_size: int = 16) -> dict[tuple[str, int], list[int]]:
    """The request's tokens on a fresh scheduler with a pool that is never short."""
    driver = Driver(make_scheduler(1000, block_size), block_size)
    driver.scheduler.add(request)
    driver.drain()
    return driver.tokens


def run_all(scheduler: Scheduler, requests: Sequence[Request], block_size: int = 16) -> Driver:
    driver = Driver(scheduler, block_size)
    for request in requests:
        scheduler.add(request)
    driver.drain()
    return driver
