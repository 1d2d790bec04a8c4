"""Running a workload's jobs on an engine, and noting when each token came."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from octavo.cli.bench import metrics
from octavo.cli.bench.metrics import Metrics, Timing
from octavo.cli.bench.workload import WARM_UP, Job, Workload
from octavo.cli.stream import make_requests
from octavo.core.errors import OctavoError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.stepping import steps

Clock = Callable[[], float]


class Driver:
    """Sends jobs to `llm` and steps its engine until all have ended: greedy, EOS ignored (several samples: temperature 1).

    llm: an `octavo.LLM`.  on_step: called after every step; its time counts as the run's.
    """

    def __init__(self, llm: Any, *, on_step: Callable[[], None] | None = None, clock: Clock = time.perf_counter) -> None:
        self._llm = llm
        self._on_step = on_step
        self._clock = clock

    def warm_up(self) -> None:
        """Run two short requests whose times nobody looks at."""
        self.send(WARM_UP)

    def run(self, kind: str, jobs: Sequence[Job]) -> tuple[Metrics, list[tuple[int, ...]]]:
        """One repetition: its figures, and the output ids of every job in order."""
        return {"batch": self._batch, "staged": self._staged, "session": self._session, "parallel": self._parallel}[kind](jobs)

    def send(self, jobs: Sequence[Job]) -> list[Timing]:
        """Queue all jobs at once and step to the end.  Raises OctavoError when one of them ends with an error."""
        requests = make_requests(self._llm, [{"prompt_token_ids": list(job.prompt)} for job in jobs], [_params(job) for job in jobs])
        sent = self._clock()
        timings = {request.request_id: Timing(sent) for request in requests}
        tokens: dict[str, list[int]] = {request_id: [] for request_id in timings}
        for outputs in steps(self._llm.engine, requests):
            now = self._clock()
            for output in outputs:
                _note(timings[output.request_id], tokens[output.request_id], output, now)
            if self._on_step is not None:
                self._on_step()
        for request_id, timing in timings.items():
            timing.out = tuple(tokens[request_id])
        return list(timings.values())

    def _batch(self, jobs: Sequence[Job]) -> tuple[Metrics, list[tuple[int, ...]]]:
        timings = self.send(jobs)
        return metrics.batch_metrics(jobs, timings), [timing.out for timing in timings]

    def _staged(self, jobs: Sequence[Job]) -> tuple[Metrics, list[tuple[int, ...]]]:
        begin = self._clock()
        (first,) = self.send(jobs[:1])
        middle = self._clock()
        rest = self.send(jobs[1:])
        end = self._clock()
        figures = metrics.staged_metrics(jobs, first, rest, (middle - begin, end - middle))
        return figures, [timing.out for timing in (first, *rest)]

    def _session(self, jobs: Sequence[Job]) -> tuple[Metrics, list[tuple[int, ...]]]:
        begin = self._clock()
        history: tuple[int, ...] = ()
        turns: list[Timing] = []
        lengths: list[int] = []
        for job in jobs:
            history += job.prompt
            lengths.append(len(history))
            turns += self.send([Job(history, job.max_tokens)])
            history += turns[-1].out
        return metrics.session_metrics(lengths, turns, self._clock() - begin), [turn.out for turn in turns]

    def _parallel(self, jobs: Sequence[Job]) -> tuple[Metrics, list[tuple[int, ...]]]:
        begin = self._clock()
        (timing,) = self.send(jobs)
        return metrics.parallel_metrics(timing, self._clock() - begin), [timing.out]


def _note(timing: Timing, tokens: list[int], output: RequestOutput, now: float) -> None:
    """Enter one delta, which came at `now`."""
    timing.cached = output.num_cached_tokens
    for sample in output.outputs:
        if sample.finish_reason == "error":
            raise OctavoError(f"{output.request_id} failed: {sample.error}")
        if sample.token_ids and timing.first is None:
            timing.first = now
        timing.n_out += len(sample.token_ids)
        if sample.index == 0:
            tokens.extend(sample.token_ids)
    if output.finished:
        timing.last = now


def _params(job: Job) -> SamplingParams:
    temperature, seed = (0.0, None) if job.n == 1 else (1.0, 1)
    return SamplingParams(n=job.n, temperature=temperature, seed=seed, max_tokens=job.max_tokens, ignore_eos=True)


def needed_length(workload: Workload) -> int:
    """The `max_model_len` that a workload needs."""
    return max(workload.longest, max(len(job.prompt) + job.max_tokens for job in WARM_UP))
