"""`octavo doctor`: what this machine gives to Octavo, what Octavo makes of it, and why."""

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the subcommand.  Mutates `commands`."""
    parser = commands.add_parser("doctor", help="examine the machine and the kernels", description=__doc__)
    parser.add_argument("--model", metavar="MODEL", help="take the product shapes of this model (default: those of SmolLM2-135M)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the kernels (default: the CPUs this process may use)")
    parser.add_argument("--quick", action="store_true", help="look only; measure nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from octavo.cli.doctor.examine import main

    return main(arguments)
