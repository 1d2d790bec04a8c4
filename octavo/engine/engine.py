"""`Engine`: the life of a request, step by step."""

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import replace

from octavo.core.errors import InvariantError, OctavoError
from octavo.core.outputs import RequestOutput
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.prefixes import Prefixes
from octavo.engine.processor import OutputProcessor
from octavo.runner.runner import ClosedRunner, Runner
from octavo.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Engine:
    """Owns one scheduler (the deciding side) and one runner (the doing side).

    One thread adds, aborts and steps; `stats` and `check` may be asked from any other, and are answered between two steps.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, processor: OutputProcessor) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.processor = processor
        self._between_steps = threading.RLock()
        self.prefixes = Prefixes(scheduler.manager, scheduler.cache_key, self._between_steps)
        self._seconds = {"schedule": 0.0, "run": 0.0, "commit": 0.0, "text": 0.0}

    def add_request(self, request: Request) -> None:
        """Queue a request.  Raises InvalidRequestError when its memory could never fit the pool, or its id is taken."""
        with self._between_steps:
            self.scheduler.add(request)
            self.processor.add(request)

    def publish(self, request: Request, tenants: Collection[str] | None) -> None:
        """Queue the request that computes the publication `request.published`, whose full blocks `tenants` (None: all) may read.

        It is published from now on, and no longer when the request fails or is aborted.  Raises as `add_request` and as
        `Prefixes.publish`, and publishes nothing then.
        """
        name = request.published
        if name is None:
            raise InvariantError(f"request {request.request_id!r} was to be published, but names no publication")
        with self._between_steps:
            whole = self.prefixes.publish(name, request.prompt_token_ids, tenants)
            try:
                self.add_request(replace(request, prompt_token_ids=request.prompt_token_ids[:whole]))
            except OctavoError:
                self.prefixes.unpublish(name)
                raise
            self.prefixes.computed_by(request.request_id, name)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its memory at once; False when it isn't here (any more).  It gives no further output."""
        with self._between_steps:
            self.processor.discard(request_id)
            self.prefixes.note_aborted(request_id)
            return self.scheduler.abort(request_id)

    def reset(self) -> None:
        """Drop every request, and the step that is under way: after whatever went wrong, the memory is home and the next may come."""
        self.scheduler.drop_in_flight()
        for request_id in self.scheduler.request_ids():
            self.abort(request_id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> list[RequestOutput]:
        """Advance every running request: schedule, run, commit, and turn tokens into text.  Returns what is new, per request.

        An exception from here (an interrupt) leaves the step half done: `reset` before the next.
        """
        with self._between_steps:
            clock = time.perf_counter()
            plan = self.scheduler.schedule()
            clock = self._lap("schedule", clock)
            result = self._execute(plan)
            clock = self._lap("run", clock)
            updates = self.scheduler.commit(plan, result)
            clock = self._lap("commit", clock)
            outputs, stops = self.processor.process(updates)
            for stop in stops:
                self.scheduler.finish(stop.seq_id, "stop", stop.stop)
            self.prefixes.note_ended(outputs)
            self._lap("text", clock)
            return outputs

    def _execute(self, plan: StepPlan) -> StepResult:
        """Run the plan; where it fails, run its halves, so that only a sequence that fails alone ends with an error.

        A step can be repeated, and a row's result doesn't depend on its batch, so the halves give what the whole would have given.
        """
        try:
            return self.runner.execute(plan)
        except Exception as error:  # whatever the machine raises is a state of the requests in this plan, never of the process
            if len(plan.chunks) <= 1:
                logger.exception("a step failed for one sequence alone; its request ends with this error")
                reason = f"{type(error).__name__}: {error}"
                return StepResult({}, 0.0, failed={chunk.seq_id: reason for chunk in plan.chunks})
        middle = len(plan.chunks) // 2
        first = self._execute(replace(plan, chunks=plan.chunks[:middle]))
        second = self._execute(StepPlan(plan.step, chunks=plan.chunks[middle:]))
        return StepResult(
            {**first.samples, **second.samples},
            first.elapsed + second.elapsed,
            {**first.prompt_logprobs, **second.prompt_logprobs},
            {**first.failed, **second.failed},
        )

    def stats(self) -> EngineStats:
        """Counts and shares at this moment; cumulative counters start with the engine."""
        with self._between_steps:
            return self.scheduler.stats()

    def check(self) -> None:
        """Raise InvariantError unless every law of the memory holds at this moment."""
        with self._between_steps:
            self.scheduler.check()

    def close(self) -> None:
        """Let go of the runner, and with it of weights, workspaces and the arena.  Counts stay readable."""
        self.runner = ClosedRunner()

    def step_seconds(self) -> dict[str, float]:
        """Seconds spent so far, by part: the runner's own parts, and what is left of its time as "rest"."""
        parts = self.runner.seconds()
        rest = self._seconds["run"] - sum(parts.values())
        deciding = {name: seconds for name, seconds in self._seconds.items() if name != "run"}
        return {**parts, **deciding, "rest": max(0.0, rest)}

    def _lap(self, part: str, begin: float) -> float:
        now = time.perf_counter()
        self._seconds[part] += now - begin
        return now
