"""How long the memory's door takes: match, open, grow, commit and release of 4,096-token prompts, and of each token appended to them.

    python bench/kv_manager.py [--blocks 10000 100000 1000000] [--indexes hash radix] [--rounds 3] [--peer COMMAND] [--json OUT]

200 prompts of 4,096 tokens in blocks of 16: one of 20 documents of 3,072 tokens, then 1,024 of its own, and 64 tokens appended one by
one; the seventeenth last is released each time.  Means in microseconds, per prompt or per appended token, of the fastest round.

COMMAND runs another manager through the same operations in the same round, and prints a JSON line for each pool size with `blocks`,
`hash_us`, `match_us`, `allocate_us`, `append_us`, `free_us`.  The ratios are its times over ours: of a prompt without the appended
tokens, of an appended token, and of both together.
"""

import argparse
import json
import random
import shlex
import subprocess
import time
from array import array
from collections.abc import Mapping
from typing import Any

from octavo.cli.table import table
from octavo.core.cache_key import CacheKey
from octavo.kv import Lease, make_kv_cache

BLOCK, DOCUMENT, PROMPT, APPENDED, PROMPTS, LIVE = 16, 3072, 4096, 64, 200, 16
STEPS = ("make", "match", "open", "commit", "append", "release")


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    documents = [[rng.randrange(49000) for _ in range(DOCUMENT)] for _ in range(20)]
    return [documents[rng.randrange(20)] + [rng.randrange(49000) for _ in range(PROMPT - DOCUMENT)] for _ in range(PROMPTS)]


def measure(index: str, num_blocks: int) -> dict[str, float]:
    """Microseconds of each step: `make` is the array of tokens, `open` fits, opens and grows; `append` grows and commits one token."""
    clock, key = time.perf_counter, CacheKey()
    spent = dict.fromkeys(STEPS, 0.0)
    manager = make_kv_cache(num_blocks=num_blocks, block_size=BLOCK, max_model_len=8192, prefix_index=index)
    live: list[Lease] = []
    found = 0
    final = PROMPT + APPENDED
    for prompt in prompts():
        begin = clock()
        tokens = array("i", prompt)
        made = clock()
        match = manager.match(key, tokens, PROMPT)
        matched = clock()
        fitted = manager.fit(match, PROMPT, PROMPT, final, 0)
        lease = None if fitted is None else manager.open(fitted, PROMPT, final)
        if lease is None or not manager.grow(lease, PROMPT):
            raise SystemExit(f"{num_blocks} blocks are too few for {LIVE + 1} prompts at once")
        opened = clock()
        manager.commit(lease, tokens, PROMPT)
        committed = clock()
        for _ in range(APPENDED):
            tokens.append(7)
            num_tokens = len(tokens)
            manager.grow(lease, num_tokens)
            manager.commit(lease, tokens, num_tokens)
        appended = clock()
        found += lease.num_cached
        live.append(lease)
        marks = (begin, made, matched, opened, committed, appended)
        for step, start, end in zip(STEPS, marks, marks[1:], strict=False):
            spent[step] += end - start
        if len(live) > LIVE:
            begin = clock()
            manager.release(live.pop(0))
            spent["release"] += clock() - begin
    times = dict.fromkeys(STEPS, PROMPTS) | {"append": PROMPTS * APPENDED, "release": PROMPTS - LIVE}
    line = {step: spent[step] / times[step] * 1e6 for step in STEPS}
    return {**line, "prompt": sum(line.values()) - line["append"], "found": found}


def measure_peer(command: str) -> dict[int, dict[str, float]]:
    """By pool size: microseconds of a prompt and of an appended token."""
    output = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    prompt = ("hash_us", "match_us", "allocate_us", "free_us")
    return {line["blocks"]: {"prompt": sum(line[part] for part in prompt), "append": line["append_us"]} for line in lines}


def whole(line: Mapping[str, Any]) -> float:
    return float(line["prompt"] + APPENDED * line["append"])


def fastest(rounds: list[dict[str, float]]) -> dict[str, float]:
    return min(rounds, key=whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--indexes", nargs="+", default=["hash", "radix"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", metavar="COMMAND")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    ours: dict[tuple[str, int], list[dict[str, float]]] = {}
    theirs: dict[int, list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):  # in turns, so that a machine that drifts drifts for all
        for num_blocks in arguments.blocks:
            for index in arguments.indexes:
                ours.setdefault((index, num_blocks), []).append(measure(index, num_blocks))
        if arguments.peer:
            for num_blocks, line in measure_peer(arguments.peer).items():
                theirs.setdefault(num_blocks, []).append(line)

    rows = []
    for (index, num_blocks), rounds in ours.items():
        row: dict[str, Any] = {"index": index, "blocks": num_blocks, **fastest(rounds)}
        if num_blocks in theirs:
            peer = fastest(theirs[num_blocks])
            row |= {"peer prompt": peer["prompt"], "peer append": peer["append"]}
            row |= {f"{what} ratio": peer[what] / row[what] for what in ("prompt", "append")}
            row["ratio"] = whole(peer) / whole(row)
        rows.append(row)
    print(table(rows, {name: name if name in ("index", "blocks", "found") else f"{name}|.2f" for name in rows[0]}))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
