"""`Settings`: typed reading of the JSON files beside a tokenizer, so that a damaged or hostile one ends in an error that names it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.core.errors import ModelLoadError


class Settings:
    """The fields of some JSON files of `folder`, those of a later file before an earlier one's.  Files that aren't there are empty.

    Every reader raises ModelLoadError, naming file and field, on a value of another type than it is for.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self._values: dict[str, Any] = {}
        self._source: dict[str, str] = {}
        for name in names:
            values = _object(folder / name)
            self._values |= values
            self._source |= dict.fromkeys(values, name)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def raw(self, name: str) -> Any:
        """Whatever the field holds, None when it is absent."""
        return self._values.get(name)

    def token(self, name: str) -> str | None:
        """A token's spelling, given as a text or as a mapping with its `content`; None when absent or null."""
        value = self.raw(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if value is not None and not isinstance(text, str):
            raise self.error(name, "a text, or a mapping with a text as its content")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """true or false; null is false."""
        value = self._values.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return bool(value)

    def ids(self, name: str) -> list[int]:
        """One token id or a list of them; empty when absent or null."""
        value = self.raw(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_id(entry) for entry in ids):
            raise self.error(name, "a token id or a list of them")
        return ids

    def vocabulary(self) -> dict[str, int]:
        """All fields of a file that maps spellings to ids."""
        for name, token in self._values.items():
            if not _is_id(token):
                raise self.error(name, "a token id")
        return self._values

    def added_tokens(self, name: str) -> dict[int, dict[str, Any]]:
        """Added tokens by id, each a mapping with a text as its `content`; empty when absent."""
        value = self.raw(name) or {}
        if not isinstance(value, Mapping) or not all(key.isdecimal() and _is_token(token) for key, token in value.items()):
            raise self.error(name, "a mapping from token ids to mappings with a text as their content")
        return {int(key): dict(token) for key, token in value.items()}

    def template(self, name: str) -> str | None:
        """A chat template, or of several named ones that named "default", or else the first; None when absent."""
        value = self.raw(name)
        if isinstance(value, list) and all(_is_named_template(entry) for entry in value):
            by_name = {entry["name"]: entry["template"] for entry in value}
            return by_name.get("default", next(iter(by_name.values()), None))
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a text, or a list of mappings with the texts name and template")
        return value

    def error(self, name: str, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self._folder / self._source[name]}: {name} is {repr(self._values[name])[:80]}; it must be {wanted}")


def read_text(file: Path) -> str:
    """A UTF-8 file's text.  Raises ModelLoadError naming the file."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{file}: not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error
    except OSError as error:
        raise ModelLoadError(f"{file}: can't be read: {error.strerror or error}") from error


def _object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file}: holds a {type(value).__name__}; an object is expected")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_token(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("content"), str)


def _is_named_template(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("name", "template"))
