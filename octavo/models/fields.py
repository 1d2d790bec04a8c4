"""`Fields`: typed reading of a config, so that a hostile or damaged one ends in an error that names the file and the field."""

import math
from collections.abc import Mapping
from typing import Any

from octavo.core.errors import ModelLoadError

MAX_SIZE = 1 << 40


class Fields:
    """A mapping of a file, read with types.  A field that is absent or null takes the default; without one that's an error.

    Every reader takes alternative names and raises ModelLoadError on a value of another type.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self._prefix = prefix

    def under(self, prefix: str) -> "Fields":
        """The same file, with `prefix` before every name."""
        return Fields(self.values, self.source, prefix)

    def __contains__(self, name: str) -> bool:
        return self.values.get(self._prefix + name) is not None

    def section(self, name: str) -> "Fields":
        """A mapping inside this one; empty when absent."""
        value = self.raw(name)
        if value is None:
            return Fields({}, f"{self.source}: {name}")
        if not isinstance(value, Mapping):
            raise self.error(name, value, "a mapping")
        return Fields(value, f"{self.source}: {name}")

    def raw(self, *names: str) -> Any:
        """The first of these that is present and not null, or None."""
        found = (self.values.get(self._prefix + name) for name in names)
        return next((value for value in found if value is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int:
        value = self._get(names, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(names[0], value, "a whole number")
        return value

    def size(self, *names: str, default: int | None = None, limit: int = MAX_SIZE) -> int:
        """A whole number of at least 1 and at most `limit`."""
        value = self.whole(*names, default=default)
        if not 1 <= value <= limit:
            raise self.error(names[0], value, f"at least 1 and at most {limit}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self._get(names, default)
        if not _is_finite(value):
            raise self.error(names[0], value, "a finite number")
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        value = self._get(names, default)
        if not isinstance(value, bool):
            raise self.error(names[0], value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        value = self._get(names, default)
        if not isinstance(value, str):
            raise self.error(names[0], value, "a text")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers; empty when absent."""
        value = self.raw(name)
        if value is not None and not (isinstance(value, list) and all(map(_is_finite, value))):
            raise self.error(name, value, "a list of finite numbers")
        return tuple(map(float, value or ()))

    def ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.raw(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in ids):
            raise self.error(name, value, "a token id or a list of them")
        return tuple(ids)

    def error(self, name: str, value: Any, wanted: str) -> ModelLoadError:
        shown = repr(value)
        return ModelLoadError(f"{self.source}: {self._prefix}{name} is {shown[:80]}; it must be {wanted}")

    def _get(self, names: tuple[str, ...], default: Any) -> Any:
        value = self.raw(*names)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.source}: {self._prefix}{names[0]} is missing")
        return value


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
