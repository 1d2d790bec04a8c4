"""From the times of requests to the figures of a run.  Arithmetic only."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.cli.bench.workload import Job

Metrics = dict[str, Any]


@dataclass(slots=True)
class Timing:
    """One request as a client saw it, in seconds of one clock: when it was sent, its first token, its last.

    out: ids of the first sample.  n_out: tokens of all samples.  cached: prompt tokens read from memory.
    """

    sent: float
    first: float | None = None
    last: float | None = None
    n_out: int = 0
    out: tuple[int, ...] = ()
    cached: int = 0

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def ended(self) -> float:
        return self.sent if self.last is None else self.last


def batch_metrics(jobs: Sequence[Job], timings: Sequence[Timing]) -> Metrics:
    """Requests that were sent together: wall time from the first sent to the last token, rates, and times to the first token."""
    wall = max(timing.ended for timing in timings) - min(timing.sent for timing in timings)
    n_in = sum(len(job.prompt) for job in jobs)
    n_out = sum(timing.n_out for timing in timings)
    wanted = sum(job.max_tokens * job.n for job in jobs)
    metrics: Metrics = {"wall_s": wall, "in_tokens": n_in, "out_tokens": n_out}
    metrics |= {"out_tok_s": n_out / wall, "total_tok_s": (n_in + n_out) / wall}
    if n_out != wanted:
        metrics["out_tokens_wanted"] = wanted
    ttfts = [timing.ttft for timing in timings if timing.ttft is not None]
    if ttfts:
        metrics |= {"ttft_s_median": statistics.median(ttfts), "ttft_s_max": max(ttfts)}
    if len(timings) == 1 and ttfts:
        metrics |= _single(n_in, timings[0], ttfts[0])
    metrics["cached_tokens"] = sum(timing.cached for timing in timings)
    return metrics


def staged_metrics(jobs: Sequence[Job], first: Timing, rest: Sequence[Timing], walls: tuple[float, float]) -> Metrics:
    """walls: seconds of the first request alone, and of the rest together."""
    n_out = first.n_out + sum(timing.n_out for timing in rest)
    inner = batch_metrics(jobs[1:], rest)
    wall = sum(walls)
    return {
        "wall_s": wall,
        "first_wall_s": walls[0],
        "rest_wall_s": walls[1],
        "out_tokens": n_out,
        "out_tok_s": n_out / wall,
        "rest_ttft_s_median": inner.get("ttft_s_median"),
        "cached_tokens": inner["cached_tokens"],
    }


def session_metrics(prompt_lens: Sequence[int], turns: Sequence[Timing], wall: float) -> Metrics:
    """One conversation; prompt_lens: tokens that each turn sent, the history included."""
    n_out = sum(turn.n_out for turn in turns)
    return {
        "wall_s": wall,
        "in_tokens": sum(prompt_lens),
        "out_tokens": n_out,
        "out_tok_s": n_out / wall,
        "turn_ttft_s": [turn.ttft for turn in turns],
        "turn_wall_s": [turn.ended - turn.sent for turn in turns],
        "turn_cached": [turn.cached for turn in turns],
        "turn_out": [turn.n_out for turn in turns],
        "cached_tokens": sum(turn.cached for turn in turns),
    }


def parallel_metrics(timing: Timing, wall: float) -> Metrics:
    """The samples of one prompt."""
    return {
        "wall_s": wall,
        "n_out": timing.n_out,
        "out_tok_s": timing.n_out / wall,
        "ttft_s": timing.ttft,
        "cached_tokens": timing.cached,
    }


def medians(reps: Sequence[Metrics]) -> Metrics:
    """Per figure the median over repetitions; of a list, element by element; of a dict, key by key."""
    return {key: _median([rep.get(key) for rep in reps]) for key in reps[0]}


def _median(values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], list):
        return [_median(list(column)) for column in zip(*present, strict=True)]
    if isinstance(present[0], dict):
        return {key: _median([value.get(key) for value in present]) for key in present[0]}
    if isinstance(present[0], bool):
        return all(present)
    return statistics.median(present) if isinstance(present[0], int | float) else present[0]


def _single(n_in: int, timing: Timing, ttft: float) -> Metrics:
    metrics: Metrics = {"ttft_s": ttft, "prefill_tok_s": n_in / ttft}
    if timing.n_out > 1 and timing.first is not None and timing.ended > timing.first:
        metrics["decode_tok_s"] = (timing.n_out - 1) / (timing.ended - timing.first)
    return metrics
