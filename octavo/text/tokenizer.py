"""`Tokenizer`: text to tokens and back, and chats to text."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.core.errors import InvalidRequestError, ModelLoadError
from octavo.text.chat_template import ChatTemplate, Message
from octavo.text.quoting import Quoted, quote, split_at_specials
from octavo.text.token_bytes import TokenBytes


class Tokenizer:
    """One model's tokenizer.  Immutable; `load_tokenizer` makes it from a model's files.

    bos_token_id: the id that begins a text, or None.
    eos_token_ids: ids that end an output, the tokenizer's own EOS first; may be empty.
    special_ids: ids of control tokens, which `decode` leaves out unless told otherwise.
    chat_template: Jinja source, or None.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """named_tokens: special tokens by the name that templates use, such as {"bos_token": "<s>"}."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._named_tokens = dict(named_tokens or {})
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.special_ids = frozenset(token for token, added in backend.get_added_tokens_decoder().items() if added.special)
        self.chat_template = chat_template
        self.token_bytes = TokenBytes(backend)

    @property
    def vocab_size(self) -> int:
        """How many tokens have an entry; a model's head may be wider."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def digest(self) -> str:
        """SHA-256, in hex, over all that turns text into ids, and the names that templates know tokens by.

        The chat template has a digest of its own (`octavo.text.chat_template.template_digest`).
        """
        beside = repr((self.bos_token_id, sorted(self._named_tokens.items())))
        whole = hashlib.sha256(self._backend.to_str().encode())
        whole.update(beside.encode("utf-8", "surrogatepass"))
        return whole.hexdigest()

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token: no text of more characters than tokens times this can be split into so few."""
        return max((len(self.token_bytes[token]) for token in self._backend.get_vocab(with_added_tokens=True).values()), default=1)

    def encode(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True) -> list[int]:
        """The token ids of `text`.

        add_special_tokens: add what the model expects around a text (its BOS, usually), unless the text brings it already.
        parse_special: whether the spelling of a special token in `text` means that token, or just those characters.
        A lone surrogate (not text, yet valid in JSON) becomes U+FFFD.  Raises InvalidRequestError for what isn't a string.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"only text can be split into tokens, not {type(text).__name__}; pass one string at a time")
        backend = self._backend if parse_special else self._plain_backend
        ids = backend.encode(_mended(text), add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`.  Bytes that are no UTF-8 become U+FFFD; an id without an entry has no text."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes[token] for token in ids if token not in skipped)
        if self.token_bytes.strip_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def id_to_token(self, token: int) -> str | None:
        """A token's spelling in the vocabulary, None for an id without an entry."""
        return self._backend.id_to_token(token)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary."""
        return self._backend.token_to_id(token)

    def render_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, *, chat_template: str | None = None, **variables: Any
    ) -> str:
        """The text of a chat by the model's template, or by `chat_template`.

        messages: mappings with a "role" and a "content" (a string, or a list of text parts).  `variables` reach the template.
        The result brings its own special tokens: encode it with `add_special_tokens=False`.
        Raises InvalidRequestError: no template, one that isn't Jinja, a malformed message, a variable that the template never reads,
        or its refusal.
        """
        template = self._template if chat_template is None else _given_template(chat_template)
        template.refuse_unread(variables)
        values = {**self._named_tokens, **variables}
        return _mended(template.render(messages, add_generation_prompt=add_generation_prompt, **values))

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        parse_special: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> list[int]:
        """The token ids of a chat.  Parameters and errors as in `render_chat`.

        parse_special: whether the spelling of a special token inside a message or variable means that token.  By default it is just
        text, so that nobody can end their own turn and speak as another role.
        """
        given = (messages, variables)
        quoted = Quoted([], given) if parse_special else quote(given, self._special_spellings)
        quoted_messages, quoted_variables = quoted.value
        text = self.render_chat(quoted_messages, add_generation_prompt, chat_template=chat_template, **quoted_variables)
        if not quoted.spellings:
            return self.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for part in split_at_specials(text, self._special_tokens):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self.encode(quoted.restore(part), add_special_tokens=False, parse_special=False)
        return ids

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template; pass chat_template=..., or render the messages yourself and give a prompt"
            )
        return ChatTemplate(self.chat_template)

    @cached_property
    def _special_tokens(self) -> dict[int, Any]:
        """Special tokens by id, as the backend describes them (content, lstrip, rstrip)."""
        return {token: added for token, added in self._backend.get_added_tokens_decoder().items() if added.special}

    @cached_property
    def _special_spellings(self) -> list[str]:
        return [added.content for added in self._special_tokens.values()]

    @cached_property
    def _plain_backend(self) -> Backend:
        """The same tokenizer, blind to special tokens in its input."""
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend


def _given_template(source: Any) -> ChatTemplate:
    """A template that came with a request: what is wrong with it is the caller's, not the model's."""
    if not isinstance(source, str):
        raise InvalidRequestError(f"chat_template must be the Jinja source of a template, not {type(source).__name__}")
    try:
        return ChatTemplate(source)
    except ModelLoadError as error:
        raise InvalidRequestError(f"{error} (in the template that came with the messages)") from error


def _mended(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
