"""`octavo bench blocks`: one workload at every block size, at equal KV bytes."""

import argparse
from typing import Any

from octavo.cli.bench.measure import Outputs, measure
from octavo.cli.bench.output import note, write
from octavo.cli.bench.workload import load_workload
from octavo.cli.flags import given
from octavo.cli.table import table
from octavo.engine.config import EngineConfig
from octavo.spec.memory import BLOCK_SIZES

COLUMNS = {
    "block_size": "block size",
    "num_blocks": "blocks",
    "out_tok_s": "output tok/s|.1f",
    "ttft_s_median": "TTFT median s|.3f",
    "wall_s": "wall s|.2f",
    "running_mean": "requests at once|.1f",
    "useful": "useful|.1%",
    "reserved": "reserved|.1%",
    "internal": "internal|.1%",
    "free": "free|.1%",
    "preemptions": "preemptions|.0f",
    "cached_tokens": "cached tokens|.0f",
    "same": "same tokens",
}


def main(arguments: argparse.Namespace) -> int:
    """Run the workload once per block size, each on a fresh engine.  The first one sizes the pool, in bytes, for all."""
    from octavo.llm import LLM

    workload = load_workload(arguments.workload)
    settings = given(arguments, EngineConfig)
    records: list[dict[str, Any]] = []
    first: Outputs = []
    for block_size in BLOCK_SIZES:
        with LLM(**settings, block_size=block_size) as llm:
            note(f"block size {block_size}\n{llm.memory_plan}")
            record, outputs = measure(llm, workload, reps=arguments.reps, progress=note)
        first = first or outputs
        records.append({"block_size": block_size, "same": outputs == first, **record})
        settings.pop("num_blocks", None)
        settings["kv_cache_memory_bytes"] = records[0]["memory_plan"]["kv_bytes"]
    write(records, summary(records), arguments.json)
    return 0


def summary(records: list[dict[str, Any]]) -> str:
    """One row per block size."""
    rows = [
        {
            "block_size": record["block_size"],
            "num_blocks": record["memory_plan"]["num_blocks"],
            "same": "yes" if record["same"] else "NO",
            **record["median"],
            **record["median"]["pool"],
            **record["median"]["pool"]["shares"],
        }
        for record in records
    ]
    return f"{records[0]['workload']}\n" + table(rows, COLUMNS)
