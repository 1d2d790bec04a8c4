"""One workload on one engine: repetitions, medians, and what the memory did meanwhile."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from octavo import __version__
from octavo.cli.bench.driver import Driver
from octavo.cli.bench.metrics import Metrics, medians
from octavo.cli.bench.workload import Job, Workload
from octavo.cli.watch import PeakMemory, PoolWatch

Outputs = list[list[tuple[int, ...]]]


def measure(
    llm: Any,
    workload: Workload,
    *,
    reps: int | None = None,
    driver: Callable[..., Driver] = Driver,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], Outputs]:
    """Warm up, then run up to `reps` repetitions.  Returns a JSON-ready record, and the output ids of every job.

    The record's `median` holds the figures of `octavo.cli.bench.metrics` and of each repetition's memory (`pool`, `rss_peak_mb`),
    its counts (`preemptions`, `tokens_computed`, ...) and, in `parts_s`, its seconds by part of a step.
    """
    runs: list[Metrics] = []
    outputs: Outputs = []
    driver(llm).warm_up()
    for number, jobs in enumerate(workload.reps[:reps], 1):
        progress(f"{workload.name}: repetition {number} of {len(workload.reps[:reps])}")
        figures, out = _repetition(llm, workload.kind, jobs, driver)
        runs.append(figures)
        outputs.append(out)
    record = {
        "workload": workload.name,
        "desc": workload.desc,
        **identity(llm),
        "n_reps": len(runs),
        "median": medians(runs),
        "wall_s_all": [run["wall_s"] for run in runs],
    }
    return record, outputs


def identity(llm: Any) -> dict[str, Any]:
    """What was measured: versions, settings, and the memory plan."""
    return {
        "peer": "octavo",
        "version": __version__,
        "python": platform.python_version(),
        "config": asdict(llm.config),
        "memory_plan": llm.memory_plan.as_dict(),
    }


COUNTS = ("preemptions", "steps", "tokens_computed", "tokens_recomputed", "tokens_cached")


def _repetition(llm: Any, kind: str, jobs: Sequence[Job], driver: Callable[..., Driver]) -> tuple[Metrics, list[tuple[int, ...]]]:
    watch = PoolWatch(llm.stats)
    counts, seconds = llm.stats(), llm.engine.step_seconds()
    with PeakMemory() as memory:
        figures, out = driver(llm, on_step=watch).run(kind, jobs)
    after = llm.stats()
    figures |= {name: getattr(after, name) - getattr(counts, name) for name in COUNTS}
    figures["pool"] = watch.report()
    figures["parts_s"] = {part: total - seconds.get(part, 0.0) for part, total in llm.engine.step_seconds().items()}
    figures["rss_peak_mb"] = memory.peak_mib
    return figures, out


def part_shares(median: Metrics) -> dict[str, float]:
    """Each part's share of the wall time; "outside" is what no part accounts for."""
    wall = median["wall_s"]
    shares = {part: seconds / wall for part, seconds in median["parts_s"].items()}
    shares["outside"] = max(0.0, 1.0 - sum(shares.values()))
    return shares
