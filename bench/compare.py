"""Octavo beside other engines on the same workloads, in turns.

    python bench/compare.py PEERS.json --workloads FOLDER [--rounds 3] [--json OUT]

PEERS.json: {"peers": [{"name": .., "command": [..]}, ..], "workloads": {"W1": "decode_tok_s", ..}}.  A peer is any command that prints
JSON lines with the fields `workload` and `median` (a table of figures), as `octavo bench run --json -` does.  In its words {workload}
stands for the workload's file, {name} for its name, {workloads} for the folder.  "workloads" names the figure to compare by; of a
figure in seconds the smaller is the better.

One round runs every peer once on every workload, one after the other, so that a machine that drifts drifts for all of them.
The figures are medians over the rounds; a ratio above 1 means that the first peer is the better one.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.cli.table import table


@dataclass(frozen=True)
class Peer:
    """One engine: a name, and the words of its command."""

    name: str
    command: tuple[str, ...]

    def words(self, workload: Path) -> list[str]:
        """The command for one workload file."""
        places = {"{workload}": str(workload), "{workloads}": str(workload.parent), "{name}": workload.stem}
        words = list(self.command)
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        return words


def figures(output: str, workload: str) -> dict[str, Any]:
    """The `median` of a workload in the JSON lines that a peer printed.  Raises ValueError when there is none."""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        if record.get("workload") == workload and "median" in record:
            median: dict[str, Any] = record["median"]
            return median
    raise ValueError(f"no line about {workload}")


def run(peer: Peer, workload: Path) -> dict[str, Any] | None:
    """One run of one peer; None, with a word on stderr, when it failed: the others still count."""
    print(f"{workload.stem}: {peer.name}", file=sys.stderr, flush=True)
    done = subprocess.run(peer.words(workload), check=False, capture_output=True, text=True)
    try:
        return figures(done.stdout, workload.stem)
    except ValueError as error:
        print(f"{peer.name} gave nothing ({error}; exit code {done.returncode}):\n{done.stderr[-2000:]}", file=sys.stderr)
        return None


def compare(runs: dict[str, list[dict[str, Any]]], figure: str) -> list[dict[str, Any]]:
    """A row per peer: the median of `figure` over its runs, and by how much the first peer is the better one."""
    medians = {
        name: statistics.median(values)
        for name, found in runs.items()
        if (values := [one[figure] for one in found if one.get(figure) is not None])
    }
    first = medians.get(next(iter(runs)))
    rows = []
    for name, found in runs.items():
        row: dict[str, Any] = {"peer": name, "figure": figure, "median": medians.get(name), "runs": len(found)}
        if first and medians.get(name):
            row["ratio"] = first / medians[name] if not _in_seconds(figure) else medians[name] / first
        rows.append(row)
    return rows


def _in_seconds(figure: str) -> bool:
    return figure.endswith(("_s", "_s_median", "_s_max")) and "tok_s" not in figure


def main() -> None:
    """Run the rounds, print a table, write every figure of every run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", metavar="PEERS.json", type=Path)
    parser.add_argument("--workloads", metavar="FOLDER", type=Path, required=True)
    parser.add_argument("--only", help="names of workloads, with commas (default: all that PEERS.json names)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    settings = json.loads(arguments.peers.read_text(encoding="utf-8"))
    peers = [Peer(entry["name"], tuple(entry["command"])) for entry in settings["peers"]]
    names = arguments.only.split(",") if arguments.only else list(settings["workloads"])
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {peer.name: [] for peer in peers} for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            for peer in peers:
                if (median := run(peer, arguments.workloads / f"{name}.json")) is not None:
                    found[name][peer.name].append(median)
    rows = [{"workload": name, **row} for name in names for row in compare(found[name], settings["workloads"].get(name, "out_tok_s"))]
    columns = {"workload": "workload", "peer": "peer", "figure": "figure", "median": "median|.2f", "runs": "runs"}
    print(table(rows, {**columns, "ratio": f"{peers[0].name} is x as good|.2f"}))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"rows": rows, "runs": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
