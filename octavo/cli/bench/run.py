"""`octavo bench run`: workloads on one engine."""

import argparse
from collections.abc import Sequence
from typing import Any

from octavo.cli.bench.driver import needed_length
from octavo.cli.bench.measure import measure, part_shares
from octavo.cli.bench.output import note, write
from octavo.cli.bench.workload import load_workload
from octavo.cli.flags import given
from octavo.cli.table import table
from octavo.engine.config import EngineConfig

COLUMNS = {
    "workload": "workload",
    "out_tok_s": "output tok/s|.1f",
    "decode_tok_s": "decode tok/s|.1f",
    "prefill_tok_s": "prefill tok/s|.1f",
    "ttft_s_median": "TTFT median s|.3f",
    "ttft_s_max": "TTFT max s|.3f",
    "wall_s": "wall s|.2f",
    "cached_tokens": "cached tokens|.0f",
    "rss_peak_mb": "peak RSS MiB|.0f",
    "n_reps": "reps",
}
POOL_COLUMNS = {
    "workload": "workload",
    "running_mean": "running mean|.1f",
    "running_peak": "peak|.0f",
    "blocks_leased_peak": "blocks peak|.0f",
    "useful": "useful|.1%",
    "reserved": "reserved|.1%",
    "internal": "internal|.1%",
    "external": "external|.1%",
    "free": "free|.1%",
    "preemptions": "preemptions|.0f",
}


def main(arguments: argparse.Namespace) -> int:
    """Load the model once and run every workload on it."""
    from octavo.llm import LLM

    workloads = [load_workload(path) for path in arguments.workload]
    settings = given(arguments, EngineConfig)
    if settings.get("load_format") == "dummy":  # a dummy has only the length it is given
        settings.setdefault("max_model_len", max(map(needed_length, workloads)))
    with LLM(**settings) as llm:
        note(str(llm.memory_plan))
        records = [measure(llm, workload, reps=arguments.reps, progress=note)[0] for workload in workloads]
    write(records, summary(records, parts=arguments.parts), arguments.json)
    return 0


def summary(records: Sequence[dict[str, Any]], *, parts: bool) -> str:
    """The tables of a run; turn times of sessions below; with `parts`, the shares of a step."""
    rows = [_row(record) for record in records]
    texts = [table(rows, COLUMNS), table(rows, POOL_COLUMNS)]
    texts += [_turns(record) for record in records if "turn_ttft_s" in record["median"]]
    if parts:
        shares = [{"workload": record["workload"], **part_shares(record["median"])} for record in records]
        names = dict.fromkeys(name for row in shares for name in row if name != "workload")
        texts.append("Share of the wall time:\n" + table(shares, {"workload": "workload", **{name: f"{name}|.1%" for name in names}}))
    return "\n\n".join(texts)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    median = record["median"]
    row = {"workload": record["workload"], "n_reps": record["n_reps"], **median, **median["pool"], **median["pool"]["shares"]}
    row.setdefault("ttft_s_median", median.get("ttft_s", median.get("rest_ttft_s_median")))
    return row


def _turns(record: dict[str, Any]) -> str:
    median = record["median"]
    rows = [
        {"turn": turn, "ttft": ttft, "wall": wall, "cached": cached, "out": out}
        for turn, (ttft, wall, cached, out) in enumerate(
            zip(median["turn_ttft_s"], median["turn_wall_s"], median["turn_cached"], median["turn_out"], strict=True), 1
        )
    ]
    columns = {"turn": "turn", "ttft": "TTFT s|.3f", "wall": "wall s|.2f", "cached": "cached tokens|.0f", "out": "output tokens|.0f"}
    return f"{record['workload']}, turn by turn:\n" + table(rows, columns)
