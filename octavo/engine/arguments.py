"""What `LLM`'s callers pass: one for all prompts or one for each, and what may stand in a list's place."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.engine.inputs import PromptInput


def as_list(prompts: Any) -> list[PromptInput]:
    """Prompts as a list, whether one was passed or several.  Raises InvalidRequestError."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts must be text, token ids, or a list of prompts, not {type(prompts).__name__}")
    # The first entry tells which list it is; a wrong one further on is then named as what it was meant to be.
    return [prompts] if prompts and isinstance(prompts[0], int) else list(prompts)


def options_of(count: int, **given: tuple[Any, type]) -> list[dict[str, Any]]:
    """The options of each prompt.  given: by name, a value for all or one for each, and its type.  Raises InvalidRequestError."""
    columns = {name: spread(name, value, count, kind) for name, (value, kind) in given.items()}
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]


def template_variables(variables: Any, tools: Any) -> dict[str, Any]:
    """What a chat's caller gives to the template.  Raises InvalidRequestError."""
    if variables is not None and not (isinstance(variables, Mapping) and all(isinstance(name, str) for name in variables)):
        raise InvalidRequestError(f"chat_template_kwargs must be a mapping from names to values, not {variables!r}")
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str | bytes)):
        raise InvalidRequestError(f"tools must be a list of mappings, not {type(tools).__name__}")
    taken = {"self", "messages", "add_generation_prompt", "chat_template", "tools", "parse_special"} & set(variables or {})
    if taken:
        raise InvalidRequestError(f"chat_template_kwargs can't hold {', '.join(sorted(taken))}: the template has it from elsewhere")
    return {**(variables or {}), **({} if tools is None else {"tools": list(tools)})}


def spread(name: str, value: Any, count: int, kind: type) -> list[Any]:
    """`value` for each of `count` prompts: itself when it is of `kind`, else its entries.  Raises InvalidRequestError."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRequestError(f"{name} must be of {kind.__name__}, one for all or one for each prompt, not {value!r}")
    values = list(value)
    if len(values) != count:
        raise InvalidRequestError(f"{name} has {len(values)} entries for {count} prompts; give one for all, or one for each")
    return values
