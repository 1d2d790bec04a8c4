"""`octavo bench`: workloads on an engine, and what its memory did meanwhile."""

import argparse
from typing import Any

from octavo.cli.flags import add_flags
from octavo.engine.config import EngineConfig

DEFAULT_MODEL = "smollm2-135m"


def add_parser(commands: Any) -> None:
    """Add the subcommand.  Mutates `commands`."""
    parser = commands.add_parser("bench", help="measure an engine on a workload", description=__doc__)
    kinds = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    run = kinds.add_parser("run", help="a workload's times and rates: medians over its repetitions")
    run.set_defaults(run=_run)
    run.add_argument("--parts", action="store_true", help="also the time of a step by part")
    layouts = kinds.add_parser("layouts", help="paged memory against reserved regions and static batching, at equal KV bytes")
    layouts.set_defaults(run=_layouts)
    blocks = kinds.add_parser("blocks", help="a sweep over block sizes, at equal KV bytes")
    blocks.set_defaults(run=_blocks)
    for kind, compared in ((run, ()), (layouts, ("kv_layout", "reserve", "batching")), (blocks, ("block_size",))):
        _add_common(kind, compared)


def _add_common(parser: argparse.ArgumentParser, compared: tuple[str, ...]) -> None:
    parser.add_argument("workload", metavar="WORKLOAD.json", nargs="+" if not compared else None)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"a name, folder, GGUF file or hub id (default: {DEFAULT_MODEL})")
    parser.add_argument("--reps", type=_positive, metavar="N", help="repetitions at most (default: all that the workload holds)")
    parser.add_argument("--json", metavar="OUT", help="write the figures there as JSON lines; - is standard output, without the table")
    add_flags(parser, EngineConfig, title="engine", skip={"model", *compared})


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be 1 or more")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from octavo.cli.bench.run import main

    return main(arguments)


def _layouts(arguments: argparse.Namespace) -> int:
    from octavo.cli.bench.layouts import main

    return main(arguments)


def _blocks(arguments: argparse.Namespace) -> int:
    from octavo.cli.bench.blocks import main

    return main(arguments)
