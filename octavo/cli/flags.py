"""Command-line flags made from a settings dataclass: one field, one flag, and nothing to keep in step by hand."""

import argparse
import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def add_flags(parser: argparse.ArgumentParser, cls: type, *, title: str, skip: Collection[str] = ()) -> None:
    """Add `--field-name` for every field of `cls` but `skip`.  Mutates `parser`.

    A Literal becomes choices, a bool the pair --x/--no-x, a list a flag that may be repeated (or, for numbers, given with commas), a
    Mapping one that is given once for each NAME=N, a dict one that takes a JSON object.
    The text of a flag is what the class's docstring says of the field.  Flags that are not given leave no attribute behind, so that
    the dataclass's own default decides.
    """
    group = parser.add_argument_group(title)
    texts = field_texts(cls)
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in skip:
            continue
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=_help(texts.get(field.name, ""), field),
            **_argument(field.name, hints[field.name]),
        )


def given(namespace: argparse.Namespace, cls: type, *, skip: Collection[str] = ()) -> dict[str, Any]:
    """The fields of `cls` but `skip` that the command line gave, ready to be its keyword arguments."""
    values = vars(namespace)
    return {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values and field.name not in skip}


def field_texts(cls: type) -> dict[str, str]:
    """What the docstring of `cls` says of its fields: entries of the form `name: text` or `name, other: text`."""
    names = {field.name for field in dataclasses.fields(cls)}
    doc = inspect.cleandoc(cls.__doc__ or "")
    entry = re.compile(r"(?:^|\n|(?<=[.;)] ) ?)((?:[a-z_]+, )*[a-z_]+): ")  # at the start of a line, or behind a sentence
    found = [match for match in entry.finditer(doc) if set(match[1].split(", ")) <= names]
    texts: dict[str, str] = {}
    for match, following in zip(found, [*found[1:], None], strict=True):
        text = doc[match.end() : following.start() if following else len(doc)].split("\n\n")[0]
        for name in match[1].split(", "):
            texts[name] = " ".join(text.split())
    return texts


def _help(text: str, field: "dataclasses.Field[Any]") -> str:
    default = "" if field.default in (None, dataclasses.MISSING) else f" (default: {field.default})"
    return (text + default).strip().replace("%", "%%")


def _argument(name: str, hint: Any) -> dict[str, Any]:
    """argparse's keyword arguments for one type hint."""
    options = [hint]
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        optional = type(None) in get_args(hint)
    for option in options:  # a plain string beside a list of them is a list of one
        if get_origin(option) in (list, tuple, Sequence):
            element = get_args(option)[0]
            if element is int:
                return {"type": _integers, "action": "extend", "metavar": "N[,N...]"}
            return {"type": element, "action": "append", "metavar": "TEXT"}
    (kind, *_) = options
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Mapping:
        return {"type": _named("name=number", _pair), "action": _Pairs, "metavar": "NAME=N"}
    if get_origin(kind) is dict:
        return {"type": _json_object, "metavar": "JSON"}
    if kind is int and name.endswith("_bytes"):
        return {"type": _named("size", _size), "metavar": "SIZE"}
    parse = _named(kind.__name__, kind)
    if optional and kind is int:
        parse = _named("int or none", _integer_or_none)
    return {"type": parse, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}


def _named(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse names a value's type in its message by the function's name."""

    def convert(text: str) -> Any:
        return parse(text)

    convert.__name__ = name
    return convert


class _Pairs(argparse.Action):
    """Collects NAME=N into one mapping; a name that is given again is a usage error."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, pair: Any, option: str | None = None) -> None:
        name, number = pair
        pairs = dict(getattr(namespace, self.dest, None) or {})
        if name in pairs:
            raise argparse.ArgumentError(self, f"{name!r} is given twice, with {pairs[name]} and {number}")
        setattr(namespace, self.dest, {**pairs, name: number})


def _pair(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")  # a tenant's name may hold the sign itself
    if not equals:
        raise ValueError(text)
    return name, int(number)


def _integer_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _size(text: str) -> int:
    """Bytes: `1000`, `2GB` (10**9), `2GiB` or `2G` (2**30)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    base = 1000 if text.strip().upper().endswith("B") and not binary and unit else 1024
    return int(float(number) * base**power)
