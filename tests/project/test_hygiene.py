"""Habits of the project that a reader relies on: short files, a docstring on everything public, nothing of one machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_files import ROOT, files, modules, name, pages, tree

MAX_LINES = 400
CODE = files("octavo", "csrc", "tests", "bench", "build_backend", suffixes=(".py", ".cpp", ".h", ".inc", ".txt", ".cmake"))
# What every architecture's file gives; octavo/models/registry.py says once what each is.
ARCHITECTURE = {"read_hf", "read_gguf", "build"}
PROJECT_FILES = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "constraints.txt"]

# In pieces, so that this file doesn't match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$)}-])/(" + "|".join(["work", "farm", "root", "tmp", "home"]) + r")/[a-z]")
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b|\bfor " + r"now\b", re.IGNORECASE
)


def test_no_file_is_too_long_to_read() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}
    assert {file: lines for file, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize("pattern", [MACHINE_PATH, UNFINISHED], ids=["machine path", "unfinished"])
def test_nothing_is_unfinished_or_of_one_machine(pattern: re.Pattern[str]) -> None:
    hits = [
        f"{name(path)}:{number}: {line.strip()[:120]}"
        for path in [*CODE, *pages(), *PROJECT_FILES]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, "\n".join(hits)


def test_everything_public_has_a_docstring() -> None:
    missing = [f"{name(path)}:{line} {what}" for path in modules() for line, what in undocumented(path)]
    assert not missing, "\n".join(missing)


def undocumented(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of the module itself and of its public functions and classes, where they lack a docstring."""
    module = tree(path)
    if module.body and ast.get_docstring(module) is None:  # an empty `__init__.py` has nothing to say
        yield 1, "the module"
    for node in module.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if path.parent.name == "architectures" and node.name in ARCHITECTURE:
            continue
        if ast.get_docstring(node) is None:
            yield node.lineno, node.name


def test_the_checks_see_what_they_look_for(tmp_path: Path) -> None:
    assert MACHINE_PATH.search("cache = '/" + "tmp/x'") and not MACHINE_PATH.search("~/" + "work/notes, build/tmp/x")
    assert UNFINISHED.search("# TO" + "DO later") and not UNFINISHED.search("the method for nowhere")
    sample = tmp_path / "sample.py"
    sample.write_text('"""Here."""\n\n\ndef open(): ...\n\n\ndef _closed(): ...\n')
    assert list(undocumented(sample)) == [(4, "open")]
