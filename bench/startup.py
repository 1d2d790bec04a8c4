"""How long Octavo takes to start: imports, the command's help, and from the start of a process to its first token.

    python bench/startup.py [--model smollm2-135m] [--reps 5] [--json OUT]

Medians of fresh processes, the first of which (a cold file cache) is left out.  The first token is timed from outside: `octavo
generate` runs with a pseudo-terminal as its output, where it streams, and the clock stops at the first byte.
"""

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from octavo.cli.table import table

IMPORTS = {
    "import octavo": "import octavo",
    "import octavo, torch not installed": "sys.modules['torch'] = None; import octavo",
    "from octavo import SamplingParams": "from octavo import SamplingParams",
    "from octavo import LLM": "from octavo import LLM",
    "import torch": "import torch",
}


def import_seconds(statement: str) -> float:
    """Seconds of one statement in a fresh interpreter, without the interpreter's own start."""
    code = f"import sys, time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def help_seconds() -> float:
    """From the start of `octavo --help` to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "octavo.cli.main", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def first_token_seconds(model: str) -> float:
    """From the start of the process to the first byte of the answer.  Raises RuntimeError when there is none."""
    command = [sys.executable, "-m", "octavo.cli.main", "generate", model, "-q", "-p", "The capital of France is"]
    reader, writer = pty.openpty()
    begin = time.perf_counter()
    with subprocess.Popen(
        [*command, "--temperature", "0", "--max-tokens", "8"], stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        os.close(writer)
        try:
            byte = os.read(reader, 1)
        except OSError:  # a terminal whose other end was closed without a word
            byte = b""
        seconds = time.perf_counter() - begin
        while byte:
            try:
                byte = os.read(reader, 1024)
            except OSError:
                break
        assert process.stderr is not None
        error = process.stderr.read().decode()
    os.close(reader)
    if process.returncode != 0:
        raise RuntimeError(f"octavo generate ended with {process.returncode}: {error}")
    return seconds


def measure(name: str, run: Callable[[], float], reps: int) -> dict[str, str | float]:
    """One row: the median, the fastest and the slowest of `reps` runs after one that doesn't count."""
    run()
    times = [run() for _ in range(reps)]
    return {"what": name, "median": statistics.median(times), "fastest": min(times), "slowest": max(times)}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    rows = [measure(name, partial(import_seconds, code), arguments.reps) for name, code in IMPORTS.items()]
    rows.append(measure("octavo --help", help_seconds, arguments.reps))
    rows.append(measure("octavo generate: first token", partial(first_token_seconds, arguments.model), arguments.reps))
    print(table(rows, {"what": "what", "median": "median s|.3f", "fastest": "fastest s|.3f", "slowest": "slowest s|.3f"}))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
