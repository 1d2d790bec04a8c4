"""How long the prefix indexes take, in pools of any size and with many siblings under one node.

    python bench/prefix_index.py [--blocks 10000 100000 1000000] [--siblings 100000] [--reps 50] [--json OUT]

Prompts of 4,096 tokens in blocks of 16.  `match` finds the whole prompt; `insert` puts 256 new blocks in at once, `one by one` with a
call for each; `extend` makes one more token of an open block findable; `forget` takes 256 blocks out, tail first.  Medians in
microseconds, per prompt or per token.  `KiB` is the memory of the index per 100 blocks.  The last rows match and extend under a node
with that many siblings; `ratio` is to one sibling.
"""

import argparse
import json
import random
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Callable

from octavo.cli.table import table
from octavo.kv.hash_index import HashIndex
from octavo.kv.prefix_index import PrefixIndex
from octavo.kv.radix_index import RadixIndex

BLOCK, PROMPT = 16, 4096
PER_PROMPT = PROMPT // BLOCK
INDEXES: dict[str, Callable[[int], PrefixIndex]] = {"hash": HashIndex, "radix": RadixIndex}


def prompt(rng: random.Random, length: int = PROMPT) -> array:
    return array("i", [rng.randrange(49000) for _ in range(length)])


def insert(index: PrefixIndex, tokens: array, first_block: int) -> None:
    """All full blocks of `tokens`, under the root."""
    index.insert_all(index.root(b"key"), tokens, 0, range(first_block, first_block + len(tokens) // BLOCK))


def insert_one_by_one(index: PrefixIndex, tokens: array, first_block: int) -> None:
    """The same with a call for each block."""
    cursor = index.root(b"key")
    for i in range(len(tokens) // BLOCK):
        cursor, _ = index.insert(cursor, tokens, i * BLOCK, first_block + i)


def microseconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6


def measure_pool(name: str, num_blocks: int, reps: int) -> dict[str, str | float]:
    """An index with `num_blocks` blocks in chains of 4,096 tokens, every fourth beginning like the one before."""
    rng, index = random.Random(1), INDEXES[name](BLOCK)
    tracemalloc.start()
    tokens = prompt(rng)
    for first in range(0, num_blocks, PER_PROMPT):
        shared = rng.randrange(PER_PROMPT) * BLOCK if first % (4 * PER_PROMPT) == 0 else 0
        tokens = tokens[:shared] + prompt(rng, PROMPT - shared)
        insert(index, tokens, first)
    kib = tracemalloc.get_traced_memory()[0] / 1024 / num_blocks * 100
    tracemalloc.stop()
    times: dict[str, list[float]] = {"insert": [], "one by one": [], "match": [], "extend": [], "forget": []}
    for rep in range(reps):
        tokens, first = prompt(rng), num_blocks + PER_PROMPT * (2 * rep + 1)
        root = index.root(b"key")
        times["insert"].append(microseconds(lambda: insert(index, tokens, first)))  # noqa: B023  # run at once
        times["match"].append(microseconds(lambda: index.match(root, tokens, PROMPT)))  # noqa: B023
        found = index.match(root, tokens, PROMPT)
        if len(found.blocks) != PER_PROMPT:
            raise RuntimeError(f"{len(found.blocks)} blocks of {PER_PROMPT} were found")
        tokens += prompt(rng, BLOCK)
        begin = time.perf_counter()
        for fill in range(1, BLOCK):
            index.extend(found.cursor, tokens, PROMPT, fill, num_blocks)
        times["extend"].append((time.perf_counter() - begin) / (BLOCK - 1) * 1e6)
        other = prompt(rng)
        times["one by one"].append(microseconds(lambda: insert_one_by_one(index, other, first + PER_PROMPT)))  # noqa: B023
        for block in reversed(range(first + PER_PROMPT, first + 2 * PER_PROMPT)):
            index.forget(block)
        begin = time.perf_counter()
        for block in (num_blocks, *reversed(found.blocks)):
            index.forget(block)
        times["forget"].append((time.perf_counter() - begin) * 1e6)
    return {"index": name, "blocks": num_blocks, "KiB": kib, **{what: statistics.median(taken) for what, taken in times.items()}}


def measure_siblings(name: str, siblings: int, reps: int) -> dict[str, str | float]:
    """Prompts of three blocks that part after the first, in any token of the second."""
    rng, index = random.Random(2), INDEXES[name](BLOCK)
    stem = prompt(rng, BLOCK)
    for first in range(siblings):
        insert(index, stem + prompt(rng, 2 * BLOCK), 3 * first)
    matching, extending = [], []
    for rep in range(reps):
        tokens = stem + prompt(rng, BLOCK)
        root = index.root(b"key")
        begin = time.perf_counter()
        found = index.match(root, tokens, len(tokens))
        middle = time.perf_counter()
        for fill in range(1, BLOCK):
            index.extend(found.cursor, tokens, BLOCK, fill, 3 * siblings + rep)
        matching.append((middle - begin) * 1e6)
        extending.append((time.perf_counter() - middle) / (BLOCK - 1) * 1e6)
        index.forget(3 * siblings + rep)
    return {"index": name, "siblings": siblings, "match": statistics.median(matching), "extend": statistics.median(extending)}


def main() -> None:
    """Measure, print two tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--siblings", type=int, default=100_000)
    parser.add_argument("--reps", type=int, default=50)
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    pools = [measure_pool(name, blocks, arguments.reps) for name in INDEXES for blocks in arguments.blocks]
    columns = {
        "index": "index",
        "blocks": "blocks",
        "KiB": "KiB per 100 blocks|.1f",
        "match": "match us|.0f",
        "insert": "insert us|.0f",
        "one by one": "one by one us|.0f",
    }
    print(table(pools, {**columns, "extend": "extend us a token|.2f", "forget": "forget us|.0f"}))
    widths = []
    for name in INDEXES:
        one, many = (measure_siblings(name, siblings, arguments.reps) for siblings in (1, arguments.siblings))
        one["ratio"] = 1.0
        many["ratio"] = many["match"] / one["match"]  # type: ignore[operator]
        widths += [one, many]
    columns = {
        "index": "index",
        "siblings": "siblings",
        "match": "match us|.1f",
        "extend": "extend us a token|.2f",
        "ratio": "ratio|.2f",
    }
    print(table(widths, columns))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"pools": pools, "siblings": widths}, file, indent=1)


if __name__ == "__main__":
    main()
