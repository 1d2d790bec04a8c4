"""`ChatTemplate`: messages to text, by a model's own Jinja template, in a sandbox."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.core.errors import InvalidRequestError, ModelLoadError

Message = Mapping[str, Any]

# What a template may call or always gets, and no caller gives.
_OUR_NAMES = ("messages", "add_generation_prompt", "raise_exception", "strftime_now", *DEFAULT_NAMESPACE)


def template_digest(source: str | None) -> str:
    """SHA-256 of a template's source, in hex; empty for none."""
    return "" if source is None else hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


class ChatTemplate:
    """A compiled chat template.

    It sees what templates on the Hugging Face hub expect: `messages`, `add_generation_prompt`, `tools`, `documents`, special tokens by
    name (`bos_token`, ...), `raise_exception`, `strftime_now`, `tojson` without HTML escapes, loop controls, the `generation` tag.
    reads: the names of all variables that it looks up.
    Raises ModelLoadError when `source` isn't a Jinja template.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(tree)
        except RecursionError as error:
            raise ModelLoadError("chat_template: is nested too deeply") from error
        except TemplateSyntaxError as error:
            raise ModelLoadError(f"chat_template: line {error.lineno} is no valid Jinja: {error.message}") from error

    def refuse_unread(self, variables: Mapping[str, Any]) -> None:
        """Raise InvalidRequestError for a variable that the template never reads: it may be misspelled.  None is no value."""
        unread = sorted(name for name, value in variables.items() if value is not None and name not in self.reads)
        if unread:
            raise InvalidRequestError(
                f"the chat template never reads {', '.join(unread)}; it reads {', '.join(sorted(self.reads - set(_OUR_NAMES)))}"
            )

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool, **variables: Any) -> str:
        """The text of `messages`.  InvalidRequestError: a message is malformed, or the template refuses the conversation."""
        checked = [_checked(i, message) for i, message in enumerate(messages)]
        if not checked:
            raise InvalidRequestError("messages is empty; a chat needs at least one message")
        values = {"tools": None, "documents": None, **variables}
        try:
            return self._template.render(messages=checked, add_generation_prompt=add_generation_prompt, **values)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            raise InvalidRequestError(f"the model's chat template can't render these messages: {error}") from error


def _checked(index: int, message: Message) -> dict[str, Any]:
    """A copy of `message` whose content is a string: a list of text parts is joined by line ends.

    Content may be absent beside something else that the model's template may read in its place, such as "tool_calls".
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"messages[{index}] is {message!r}; each must be a mapping with a 'role' and a 'content'")
    content = message.get("content")
    if content is None and not any(message[name] is not None for name in message if name not in ("role", "name")):
        raise InvalidRequestError(
            f"messages[{index}] of role {message['role']!r} has no content; give it 'content', which may be an empty string"
        )
    if isinstance(content, list | tuple):
        content = "\n".join(_text_part(index, part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise InvalidRequestError(
            f"messages[{index}]: content is a {type(content).__name__}; it must be a string or a list of text parts"
        )
    return {**message, "content": content} if "content" in message else dict(message)


def _text_part(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InvalidRequestError(f"messages[{index}]: a content part is of type {kind!r}; only text parts are taken")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise InvalidRequestError(f"the model's chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it only lets them through."""

    tags = {"generation"}  # noqa: RUF012 (the name and type are jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
