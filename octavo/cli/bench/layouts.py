"""`octavo bench layouts`: paged memory against what it replaced, at equal KV bytes.

Reserved layouts give each request one contiguous region at admission: of the model's maximum length, of its length rounded up to a
power of two, or of exactly its length (SOSP 2023, PagedAttention, sections 3.1 and 6.1: Orca Max, Pow2 and Oracle).  Static batching
runs a whole batch to its end before the next begins.  All of them compute the same tokens, which is checked.
"""

import argparse
from typing import Any

from octavo.cli.bench.measure import Outputs, measure
from octavo.cli.bench.output import note, write
from octavo.cli.bench.workload import Workload, load_workload
from octavo.cli.flags import given
from octavo.cli.table import table
from octavo.engine.config import EngineConfig

VARIANTS: dict[str, dict[str, Any]] = {
    "paged": {"kv_layout": "paged"},
    "reserved, oracle": {"kv_layout": "reserved", "reserve": "oracle"},
    "reserved, pow2": {"kv_layout": "reserved", "reserve": "pow2"},
    "reserved, max": {"kv_layout": "reserved", "reserve": "max"},
    "static, paged": {"batching": "static", "kv_layout": "paged"},
    "static, reserved max": {"batching": "static", "kv_layout": "reserved", "reserve": "max"},
}
COLUMNS = {
    "variant": "memory",
    "out_tok_s": "output tok/s|.1f",
    "ratio": "paged is x as fast|.2f",
    "wall_s": "wall s|.2f",
    "running_mean": "requests at once|.1f",
    "running_peak": "peak|.0f",
    "useful": "useful|.1%",
    "reserved": "reserved|.1%",
    "internal": "internal|.1%",
    "external": "external|.1%",
    "free": "free|.1%",
    "preemptions": "preemptions|.0f",
    "same": "same tokens",
}
# The length that the paper's reserving systems had to provide for, and how short the pool is made, where the flags say nothing.
MAX_MODEL_LEN = 2048
POOL_SHARE = 0.25


def main(arguments: argparse.Namespace) -> int:
    """Run the workload once per variant, each on a fresh engine with the same pool."""
    from octavo.llm import LLM

    workload = load_workload(arguments.workload)
    settings = pool_settings(given(arguments, EngineConfig), workload)
    records: list[dict[str, Any]] = []
    first: Outputs = []
    for name, variant in VARIANTS.items():
        with LLM(**settings, **variant) as llm:
            note(f"{name}\n{llm.memory_plan}")
            record, outputs = measure(llm, workload, reps=arguments.reps, progress=note)
        first = first or outputs
        records.append({"variant": name, "same": outputs == first, **record})
    write(records, summary(records), arguments.json)
    return 0


def pool_settings(settings: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """Fill in what the flags left open: a maximum length, and a pool that is short for the workload.

    The pool gets a quarter of the tokens that all requests together come to, and at least two regions of the maximum length.
    """
    settings = dict(settings)
    settings.setdefault("max_model_len", max(MAX_MODEL_LEN, workload.longest))
    if "num_blocks" not in settings and "kv_cache_memory_bytes" not in settings:
        block_size = settings.get("block_size", EngineConfig.block_size)
        demand = sum((len(job.prompt) + job.max_tokens) * job.n for job in workload.reps[0])
        tokens = max(int(demand * POOL_SHARE), 2 * settings["max_model_len"])
        settings["num_blocks"] = -(-tokens // block_size)
    return settings


def summary(records: list[dict[str, Any]]) -> str:
    """One row per variant; means are over the time of a run."""
    fastest = records[0]["median"]["out_tok_s"]
    rows = [
        {
            "variant": record["variant"],
            "ratio": fastest / record["median"]["out_tok_s"],
            "same": "yes" if record["same"] else "NO",
            **record["median"],
            **record["median"]["pool"],
            **record["median"]["pool"]["shares"],
        }
        for record in records
    ]
    plan = records[0]["memory_plan"]
    pool = f"{plan['num_blocks']:,} blocks of {plan['block_size']} tokens; maximum length {plan['max_model_len']:,}"
    return f"{records[0]['workload']}: {pool}\n" + table(rows, COLUMNS)
