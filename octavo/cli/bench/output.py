"""Where a benchmark's figures go: a table for people, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.core.errors import OctavoError


def write(records: Iterable[Mapping[str, Any]], text: str, destination: str | None) -> None:
    """Print the table, and write the records to `destination` if there is one (`-`: to standard output, instead of the table)."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    if destination == "-":
        sys.stdout.write(lines)
        return
    print(text)
    if destination is None:
        return
    try:
        with open(destination, "w", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise OctavoError(f"the figures can't be written to {destination}: {error}") from error


def note(text: str) -> None:
    """A line about progress, on standard error."""
    print(text, file=sys.stderr, flush=True)
