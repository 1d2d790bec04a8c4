"""`InputProcessor`: from what a caller passes to a complete, checked `Request`."""

import itertools
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.params import BeamSearchParams, SamplingParams
from octavo.core.request import Request
from octavo.engine.beam_inputs import sampling_of
from octavo.text.bad_words import bad_word_ids
from octavo.text.chat_template import template_digest
from octavo.text.tokenizer import Tokenizer

PromptInput = str | Sequence[int] | Mapping[str, Any]
Params = SamplingParams | BeamSearchParams

# Characters of a tenant's name or a salt.  They are hashed for every request and kept with its memory, so they have a bound.
MAX_NAMESPACE_CHARS = 512


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What bounds a request of a paged pool.

    usable_tokens: the most one sequence may hold in the pool; pool: how it was sized, for messages.
    """

    vocab_size: int
    max_model_len: int
    usable_tokens: int
    eos_token_ids: tuple[int, ...]
    pool: str

    def max_tokens_that_fit(self, prompt_len: int) -> int:
        """New tokens that the pool can hold behind such a prompt; 0 when the prompt alone doesn't fit.

        The last token is answered and never read again, so it takes no place.
        """
        return max(0, self.usable_tokens - prompt_len + 1)


class InputProcessor:
    """Makes requests of one engine.  Holds the counters that a request draws from: arrival, id, and seed.

    max_tokens_that_fit: as of `EngineLimits`, for a memory that isn't paged.
    """

    def __init__(
        self, tokenizer: Tokenizer, limits: EngineLimits, seed: int, max_tokens_that_fit: Callable[[int], int] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self._max_tokens_that_fit = max_tokens_that_fit or limits.max_tokens_that_fit
        self._seeds = random.Random(seed)
        self._arrivals = itertools.count()

    def request(self, prompt: PromptInput, params: Params, *, kind: type[Params] = SamplingParams, **options: Any) -> Request:
        """One request.  Raises InvalidRequestError.

        kind: what `params` must be.
        options: request_id, priority, tenant, cache_salt, published (see `Request`), and chat_template: the Jinja source that rendered
        the prompt in place of the model's own.
        """
        return self.requests([prompt], [params], [options], kind=kind)[0]

    def requests(
        self,
        prompts: Sequence[PromptInput],
        params: Sequence[Params],
        options: Sequence[Mapping[str, Any]],
        *,
        kind: type[Params] = SamplingParams,
    ) -> list[Request]:
        """A list, all of it checked before any counter moves.  Raises InvalidRequestError, which names the index."""
        checked = []
        for index, (prompt, one, extra) in enumerate(zip(prompts, params, options, strict=True)):
            try:
                text, ids = self._tokens(prompt)
                sampling, beam = self._sampling(one, kind)
                self._check(ids, sampling)
                _check_options(extra)
            except InvalidRequestError as error:
                raise InvalidRequestError(error.detail, index=index) from error
            checked.append((text, ids, sampling, {**extra, "beam": beam}))
        return [self._build(*one) for one in checked]

    def _sampling(self, params: Params, kind: type[Params]) -> tuple[SamplingParams, BeamSearchParams | None]:
        if not isinstance(params, kind):
            raise InvalidRequestError(f"the parameters must be {kind.__name__}, not {type(params).__name__}")
        if isinstance(params, SamplingParams):
            return params, None
        return sampling_of(params, self.limits.vocab_size, self.limits.eos_token_ids), params

    def _build(self, text: str | None, ids: tuple[int, ...], params: SamplingParams, options: dict[str, Any]) -> Request:
        arrival = next(self._arrivals)
        options.setdefault("request_id", uuid.uuid4().hex)
        if options.get("chat_template") is not None:
            options["chat_template"] = template_digest(options["chat_template"])
        eos = () if params.ignore_eos else self.limits.eos_token_ids
        return Request(
            prompt_token_ids=ids,
            prompt=text,
            params=params,
            max_tokens=self._max_tokens(len(ids), params),
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            stop_token_ids=frozenset((*eos, *(params.stop_token_ids or ()))),
            bad_words_ids=bad_word_ids(self.tokenizer, params.bad_words or ()),
            arrival=arrival,
            **options,
        )

    def _tokens(self, prompt: PromptInput) -> tuple[str | None, tuple[int, ...]]:
        text: str | None = None
        ids: Any = prompt
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids"}
            if unknown or not prompt:
                raise InvalidRequestError(f"a prompt's fields are 'prompt' or 'prompt_token_ids', not {sorted(map(str, prompt))}")
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if text is not None and not isinstance(text, str):
                raise InvalidRequestError(f"'prompt' must be text, not {type(text).__name__}")
        elif isinstance(prompt, str):
            text, ids = prompt, None
        if ids is None:
            if text is None:
                raise InvalidRequestError("the prompt is neither text nor a list of token ids")
            self._check_text(text)
            ids = self.tokenizer.encode(text)
            if not ids:
                raise InvalidRequestError("the prompt is empty, and this model has no token that begins a text; send at least one")
        return text, self._checked_ids(ids)

    def _checked_ids(self, given: Any) -> tuple[int, ...]:
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise InvalidRequestError(
                f"the prompt must be text or a list of token ids, not {_shown(given)} ({type(given).__name__});"
                " a list of prompts holds texts or lists of ids"
            )
        ids: tuple[int, ...] = tuple(given)
        if not ids:
            raise InvalidRequestError("the prompt has no token ids; send at least one")
        for position, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int):
                raise InvalidRequestError(
                    f"token {position} of the prompt is {_shown(token)}, which is not a whole number of type int;"
                    f" ids are 0 to {self.limits.vocab_size - 1} (an array's .tolist() has them), and several prompts are a list of"
                    " texts or of lists"
                )
            if not 0 <= token < self.limits.vocab_size:
                raise InvalidRequestError(
                    f"token {position} of the prompt is {token}; this model's ids are 0 to {self.limits.vocab_size - 1}"
                )
        return ids

    def _check(self, ids: tuple[int, ...], params: SamplingParams) -> None:
        params.check_vocab(self.limits.vocab_size)
        limits, length = self.limits, len(ids)
        if length >= limits.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {length} tokens and leaves no room for an answer: max_model_len is {limits.max_model_len};"
                " shorten it or raise max_model_len"
            )
        fitting = self._max_tokens_that_fit(length)
        if not fitting:
            raise InvalidRequestError(
                f"the prompt has {length} tokens, and the KV cache holds {limits.usable_tokens} in all ({limits.pool}); shorten it,"
                " or raise num_blocks or kv_cache_memory_bytes"
            )
        if params.max_tokens_given and params.max_tokens is not None:
            self._check_length(length, int(params.max_tokens), fitting)
        if params.min_tokens > (most := self._max_tokens(length, params)):
            raise InvalidRequestError(f"min_tokens={params.min_tokens} can't be reached: at most {most} tokens fit behind this prompt")

    def _check_length(self, length: int, max_tokens: int, fitting: int) -> None:
        limits = self.limits
        if length + max_tokens > limits.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {length} tokens and max_tokens={max_tokens} asks for as many more, together"
                f" {length + max_tokens}: max_model_len is {limits.max_model_len}; lower max_tokens to at most"
                f" {limits.max_model_len - length} or raise max_model_len"
            )
        if max_tokens > fitting:
            raise InvalidRequestError(
                f"the prompt has {length} tokens and max_tokens={max_tokens}, and the KV cache holds"
                f" {limits.usable_tokens} in all ({limits.pool}); lower max_tokens to at most {fitting},"
                " or raise num_blocks or kv_cache_memory_bytes"
            )

    def _check_text(self, text: str) -> None:
        """Refuse what can't fit by its length alone, before the work of splitting it."""
        longest = self.tokenizer.longest_token_bytes
        if len(text) > self.limits.max_model_len * longest:
            raise InvalidRequestError(
                f"the prompt has {len(text)} characters, more than max_model_len={self.limits.max_model_len} tokens can hold"
                f" (the longest token has {longest} bytes); shorten it"
            )

    def _max_tokens(self, length: int, params: SamplingParams) -> int:
        room = min(self.limits.max_model_len - length, self._max_tokens_that_fit(length))
        return room if params.max_tokens is None else min(int(params.max_tokens), room)


def _check_options(options: Mapping[str, Any]) -> None:
    """What a caller may add to a prompt.  Raises InvalidRequestError."""
    for name, value in options.items():
        if name == "priority":
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise InvalidRequestError(f"priority={value!r} must be a whole number of 64 bits")
        elif name != "chat_template" or value is not None:
            check_text_option(name, value)


def check_text_option(name: str, value: Any) -> None:
    """Text that a message to the engine can carry, and no longer than it may be.  Raises InvalidRequestError."""
    if not isinstance(value, str) or (name == "request_id" and not value):
        raise InvalidRequestError(f"{name}={value!r} must be text{' of at least one character' if name == 'request_id' else ''}")
    if name == "chat_template":
        return
    if name in ("tenant", "cache_salt") and len(value) > MAX_NAMESPACE_CHARS:
        raise InvalidRequestError(
            f"{name} has {len(value)} characters, more than {MAX_NAMESPACE_CHARS}; send a shorter one, such as a digest of it"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name}={value!r} has half a surrogate pair at character {error.start}, which no message can carry; send whole characters"
        ) from error


def _shown(value: Any) -> str:
    """A wrong value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
