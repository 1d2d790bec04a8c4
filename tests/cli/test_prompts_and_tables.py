"""Reading prompts, and writing tables."""

import argparse
import io
from pathlib import Path

import pytest

from octavo.cli.prompts import parse_prompts, read_prompts
from octavo.cli.table import size, table
from octavo.core.errors import InvalidRequestError


def arguments(prompt: list[str] | None = None, file: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(prompt=prompt, file=file)


def test_a_prompt_a_line() -> None:
    assert parse_prompts(["one\n", "\n", " two \n"], "x") == ["one", " two "]


def test_json_lines() -> None:
    lines = ['{"prompt": "a\\nb", "id": 3}\n', '{"prompt_token_ids": [1, 2]}\n']
    assert parse_prompts(lines, "x") == [{"prompt": "a\nb"}, {"prompt_token_ids": [1, 2]}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "x holds no prompt"),
        (["\n"], "x holds no prompt"),
        (['{"prompt": "a"}', "", "{oops"], "x, line 3: not a JSON object"),
        (['{"text": "a"}'], 'x, line 1: needs "prompt"'),
        (['{"prompt": "a"}', "[1]"], 'x, line 2: needs "prompt"'),
    ],
)
def test_wrong_files_name_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_prompts(lines, "x")
    assert message in str(caught.value)


def test_where_prompts_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_prompts(arguments(prompt=["a", "b"])) == ["a", "b"]
    (tmp_path / "p.txt").write_text("from a file\n")
    assert read_prompts(arguments(file=str(tmp_path / "p.txt"))) == ["from a file"]
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert read_prompts(arguments()) == ["from a pipe"]
    with pytest.raises(InvalidRequestError, match="can't be read"):
        read_prompts(arguments(file=str(tmp_path / "none")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequestError, match="can't be read"):
        read_prompts(arguments(file=str(tmp_path / "binary")))


def test_no_prompt_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(InvalidRequestError, match="give one with -p"):
        read_prompts(arguments())


def test_a_table() -> None:
    text = table([{"a": "x", "b": 1.25}, {"a": "long", "b": None, "c": [1.0, 2.0]}], {"a": "name", "b": "v|.1f", "c": "list|.0f"})
    assert text.splitlines() == [
        "| name |   v | list |",
        "|------|----:|------|",
        "| x    | 1.2 | -    |",
        "| long |   - | 1 2  |",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**42, "4,096.0 GiB")]
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text
