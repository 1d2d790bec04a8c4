"""What the prefix cache costs when nothing is ever reused.

    python bench/cache_cost.py [--model smollm2-135m] [--pairs 20] [--requests 16] [--prompt 256] [--output 32] [--prefix-index
    hash|radix] [--json OUT]

Runs the same requests of fresh random prompts with the cache on and off, in turns (a pair is one run of each, in a random order),
and reports
tokens/s on / off: the median over the pairs.  Beside it the CPU time inside the index (its methods are timed by the thread's clock,
the timer included), as a share of the time that the steps took.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.cli.table import table
from octavo.kv.hash_index import HashIndex
from octavo.kv.prefix_index import PrefixIndex
from octavo.kv.radix_index import RadixIndex

INDEXES: dict[str, type[PrefixIndex]] = {"hash": HashIndex, "radix": RadixIndex}
COLUMNS = {
    "index": "index",
    "pairs": "pairs",
    "on_off": "on / off, median|.3f",
    "lowest": "lowest|.3f",
    "highest": "highest|.3f",
    "inside_share": "CPU time in the index, % of steps|.2f",
    "hit_rate": "hit rate|.3f",
    "evictions": "evictions",
}
TIMED = ("root", "match", "insert", "insert_all", "extend", "shorten", "forget", "fill")


class Inside:
    """CPU seconds inside an index's methods, calls among themselves counted once."""

    def __init__(self, kind: type[PrefixIndex]) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name in TIMED:
            setattr(kind, name, self._timed(getattr(kind, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._depth:
                return method(*arguments, **named)
            self._depth = 1
            begin = time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - begin
                self._depth = 0

        return timed


def run(llm: LLM, prompts: list[list[int]], output: int) -> float:
    """Output tokens per second."""
    begin = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True), use_tqdm=False)
    return len(prompts) * output / (time.perf_counter() - begin)


def main() -> None:
    """Run the pairs, print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--prefix-index", choices=sorted(INDEXES), default="hash")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    inside = Inside(INDEXES[arguments.prefix_index])
    settings: dict[str, Any] = {
        "dtype": arguments.dtype,
        "max_model_len": 4096,
        "prefix_index": arguments.prefix_index,
        "num_blocks": 4096,
    }
    draws = random.Random(1)
    ratios = []
    with LLM(arguments.model, **settings) as on, LLM(arguments.model, enable_prefix_caching=False, **settings) as off:
        for llm in (on, off):
            run(llm, [[1] * 64], 4)
        inside.seconds, begin = 0.0, sum(on.engine.step_seconds().values())
        for _ in range(arguments.pairs):
            prompts = [[draws.randrange(100, 40_000) for _ in range(arguments.prompt)] for _ in range(arguments.requests)]
            speed = {}
            for name, llm in sorted({"on": on, "off": off}.items(), key=lambda _: draws.random()):
                speed[name] = run(llm, prompts, arguments.output)
            ratios.append(speed["on"] / speed["off"])
        stats, steps = on.stats(), sum(on.engine.step_seconds().values()) - begin
    result = {
        "index": arguments.prefix_index,
        "pairs": arguments.pairs,
        "on_off": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "inside_share": 100 * inside.seconds / steps,
        "hit_rate": stats.hit_rate,
        "evictions": stats.evictions_capacity,
    }
    print(table([result], COLUMNS))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**result, "ratios": ratios}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
