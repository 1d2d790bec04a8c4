"""Keeping the spelling of special tokens in a user's words from becoming those tokens.

A template mixes its own markers with the users' words, and in the text that it renders they look the same.  So before rendering, each
special token's spelling in what the caller gives (messages, tools, other variables) is swapped for a placeholder; afterwards whatever
marker is in the text is the template's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True)
class Quoted:
    """A value with placeholders, and the spelling that each stands for.  `mark` begins and ends a placeholder."""

    spellings: list[str]
    value: Any
    mark: str = ""

    def restore(self, text: str) -> str:
        """`text` with the placeholders' spellings back in place."""
        return re.sub(f"{self.mark}([0-9]+){self.mark}", lambda match: self.spellings[int(match[1])], text)


def quote(value: Any, specials: Sequence[str]) -> Quoted:
    """Swap every spelling of `specials` in the strings of `value` (lists and mappings, keys too) for a placeholder.

    The argument stays as it is.
    """
    texts = list(_strings(value))
    if not any(special in text for special in specials for text in texts):
        return Quoted([], value)
    mark = next(chr(code) for code in _PRIVATE_USE if not any(chr(code) in text for text in texts))
    finder = _any_of(specials)
    spellings: list[str] = []

    def placeholder(match: "re.Match[str]") -> str:
        spellings.append(match[0])
        return f"{mark}{len(spellings) - 1}{mark}"

    return Quoted(spellings, _mapped(value, lambda text: finder.sub(placeholder, text)), mark)


def split_at_specials(text: str, specials: Mapping[int, Any]) -> Iterator[str | int]:
    """Pieces of `text` and, between them, the ids of the special tokens that it spells.

    specials: by id, with `content`, and `lstrip` and `rstrip` for tokens that take in the white space beside them.
    """
    by_spelling = {added.content: (token, added) for token, added in specials.items()}
    place, strip = 0, False
    for match in _any_of(list(by_spelling)).finditer(text):
        token, added = by_spelling[match[0]]
        yield from _piece(text[place : match.start()], strip, added.lstrip)
        yield token
        place, strip = match.end(), added.rstrip
    yield from _piece(text[place:], strip, False)


def _piece(text: str, strip_left: bool, strip_right: bool) -> Iterator[str]:
    text = text.lstrip() if strip_left else text
    text = text.rstrip() if strip_right else text
    if text:
        yield text


def _any_of(texts: Sequence[str]) -> "re.Pattern[str]":
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
