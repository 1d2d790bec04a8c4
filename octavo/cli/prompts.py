"""Prompts from the command line, a file, or standard input."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from octavo.core.errors import InvalidRequestError

Prompt = str | dict[str, Any]


def add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    """Add -p and -f.  Mutates `parser`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated")
    group.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help='a prompt a line, or a JSON object a line ({"prompt": "..."} or {"prompt_token_ids": [...]}); - is standard input',
    )


def read_prompts(arguments: argparse.Namespace, *, chat: bool = False) -> list[Prompt]:
    """The prompts that `-p` or `-f` name; without either, standard input when it isn't a terminal.

    chat: each will be a user's message, so it must be text.

    Raises InvalidRequestError when there is none, or when a file or line can't be read.
    """
    if arguments.prompt:
        return list(arguments.prompt)
    name = arguments.file
    if name is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise InvalidRequestError("no prompt: give one with -p, or a file of prompts with -f (- is standard input)")
        name = "-"
    if name == "-":
        return parse_prompts(sys.stdin, "standard input", chat=chat)
    try:
        with open(name, encoding="utf-8") as file:
            return parse_prompts(file, name, chat=chat)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the prompts in {name} can't be read: {error}") from error


def parse_prompts(lines: Iterable[str], name: str, *, chat: bool = False) -> list[Prompt]:
    """A prompt a line, blank lines left out.  A file whose first line opens a JSON object is read as JSON lines."""
    numbered = [(number, text.rstrip("\r\n")) for number, text in enumerate(lines, 1) if text.strip()]
    if not numbered:
        raise InvalidRequestError(f"{name} holds no prompt")
    if not numbered[0][1].lstrip().startswith("{"):
        return [text for _, text in numbered]
    return [_json_prompt(text, f"{name}, line {number}", chat) for number, text in numbered]


def _json_prompt(text: str, place: str, chat: bool) -> Prompt:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{place}: not a JSON object: {error}") from error
    if not isinstance(value, dict) or not ("prompt" in value or "prompt_token_ids" in value):
        raise InvalidRequestError(f'{place}: needs "prompt" or "prompt_token_ids"')
    if chat and ("prompt_token_ids" in value or not isinstance(value["prompt"], str)):
        raise InvalidRequestError(f'{place}: --chat sends messages, so a line needs a "prompt" of text and no "prompt_token_ids"')
    return {name: value[name] for name in ("prompt", "prompt_token_ids") if name in value}
