"""`octavo`: the parser, and what each way of ending means to a shell."""

import argparse
import os
import sys
from collections.abc import Sequence

from octavo import __version__
from octavo.cli import bench, chat, doctor, generate
from octavo.core.errors import OctavoError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def build_parser() -> argparse.ArgumentParser:
    """The whole command line.  Each subcommand leaves its function in `run`."""
    parser = argparse.ArgumentParser(prog="octavo", description="An LLM serving engine whose centre is the memory of attention.")
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (generate, chat, bench, doctor):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns 0, 1 after an error of Octavo's (its message alone on stderr), or 130 after Ctrl-C.

    A wrong command line ends the process with 2, as argparse does.  Anything else is a fault of the program and keeps its traceback.
    """
    try:
        arguments = build_parser().parse_args(argv)  # which may print, too
        return int(arguments.run(arguments) or OK)
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("octavo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away; what is still buffered must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
