"""What the tests of the project itself share: its root, and its files as git would list them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "octavo"


def files(*folders: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Source files under these folders of the project, sorted.  What tools leave behind is passed over."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if not _generated(path.relative_to(ROOT)))


def modules() -> list[Path]:
    """Every Python file of the package."""
    return files("octavo", suffixes=(".py",))


def pages() -> list[Path]:
    """Every Markdown page of the project: at the root and under docs/."""
    return sorted(ROOT.glob("*.md")) + files("docs", suffixes=(".md",))


def name(path: Path) -> str:
    """The path as a reader writes it, from the project's root."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of one Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file of the package imports, at any depth; `from a import b` gives `a.b`.

    Imports for type checkers alone are passed over: they don't run.
    """
    package = path.relative_to(ROOT).parent.parts
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        pending.extend(ast.iter_child_nodes(node))


def _generated(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") or part.endswith(".egg-info") for part in path.parts)
