"""Plain tables for terminals that are also good Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Lines of `| a | b |`.  columns: a row's key -> its heading, with a format after a bar (`"wall s|.2f"`).

    A missing value is a dash.
    """
    heads = [head.partition("|")[0] for head in columns.values()]
    formats = [head.partition("|")[2] for head in columns.values()]
    body = [[cell(row.get(key), spec) for key, spec in zip(columns, formats, strict=True)] for row in rows]
    widths = [max(len(line[i]) for line in (heads, *body)) for i in range(len(heads))]
    numeric = [all(_is_number(row.get(key)) for row in rows) for key in columns]
    lines = [_line(heads, widths, numeric)]
    rules = ["-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, numeric, strict=True)]
    lines.append("|" + "|".join(rules) + "|")
    lines.extend(_line(cells, widths, numeric) for cells in body)
    return "\n".join(lines)


def cell(value: Any, spec: str) -> str:
    """One value as text; lists keep their order."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return " ".join(cell(item, spec) for item in value)
    return format(value, spec) if spec and isinstance(value, int | float) else str(value)


def size(num_bytes: float) -> str:
    """Bytes as people read them: `12.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024 or unit == "GiB":
            return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("unreachable")


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [text.rjust(width) if right else text.ljust(width) for text, width, right in zip(cells, widths, numeric, strict=True)]
    return "| " + " | ".join(padded) + " |"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
