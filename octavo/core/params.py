"""`SamplingParams` and `BeamSearchParams`: how a request's tokens are chosen and when it ends."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.core.errors import InvalidRequestError

MAX_SAMPLES = 256
MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 1024
MAX_BEAM_WIDTH = 256
# With it no length below 2**31 leaves float32: (2**31) ** 4 == 2**124.
MAX_LENGTH_PENALTY = 4.0
# Below this a division by the temperature overflows float32 for ordinary logits: it is greedy by any measure.
GREEDY_BELOW = 1e-5
SEED_LIMIT = 2**64


class _Unset(int):
    """The default of `max_tokens`: equal to 16, yet told apart from a 16 that the caller wrote."""


MAX_TOKENS_DEFAULT = _Unset(16)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters, with the names and defaults that users of vLLM know.

    Built once, never mutated, and shared freely between requests.  Construction checks everything that can be
    checked without a model; `check_vocab` checks the rest.

    n: samples of one prompt; each draws from its own counter.
    best_of: draw so many, and return the n with the highest sum of logprobs, the best first (None: as many as n).
    temperature: 0 (or below 1e-5) is greedy.  top_p: in (0, 1].  top_k: 0 or -1 switches it off.  min_p: in [0, 1].
    presence_penalty, frequency_penalty: in [-2, 2], over generated tokens.
    repetition_penalty: above 0, over prompt and generated tokens (Keskar et al. 2019, section 4.1).
    max_tokens: at most this many new tokens; None means as many as the model's length allows.  A value that the
        caller wrote and that can't fit is refused; the default is capped instead.
    min_tokens: until then no EOS and no stop token is chosen, and stop strings are not looked for.
    stop: strings that end the text (cut off unless `include_stop_str_in_output`).
    seed: in [0, 2**64); drawn at admission, and returned with the output, when None.
    logprobs, prompt_logprobs: how many alternatives to report (0: only the token itself; None: nothing).  They are the
        model's own log-softmax in float32, before penalties, temperature and masks.
    logit_bias: token id -> value in [-100, 100] added to its logit.
    allowed_token_ids: only these may be chosen.  bad_words: texts that must not be generated.

    Raises InvalidRequestError.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = MAX_TOKENS_DEFAULT
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: str | Sequence[str] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, MAX_SAMPLES)
        if self.best_of is not None:
            _whole("best_of", self.best_of, 1, MAX_SAMPLES)
            if self.best_of < self.n:
                raise InvalidRequestError(f"best_of={self.best_of} is below n={self.n}; raise it, or lower n")
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens={self.min_tokens} is above max_tokens={int(self.max_tokens)}; lower it or raise max_tokens"
            )
        if self.seed is not None:
            _whole("seed", self.seed, 0, SEED_LIMIT - 1)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            _flag(name, getattr(self, name))
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                _whole(name, value, 0, MAX_LOGPROBS)
        object.__setattr__(self, "stop", _texts("stop", self.stop, MAX_STOP_STRINGS))
        object.__setattr__(self, "bad_words", _texts("bad_words", self.bad_words, 1024))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidRequestError("allowed_token_ids is empty: nothing could be chosen; leave it out to allow every token")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def num_samples(self) -> int:
        """How many are drawn."""
        return self.n if self.best_of is None else self.best_of

    @property
    def chooses(self) -> bool:
        """Whether more are drawn than returned: then which, is known only when all have ended."""
        return self.num_samples > self.n

    @property
    def num_logprobs(self) -> int | None:
        """As `logprobs`, but at least the chosen token's own where samples are ranked by it."""
        return 0 if self.logprobs is None and self.chooses else self.logprobs

    @property
    def max_tokens_given(self) -> bool:
        """Whether the caller wrote `max_tokens`: then it is kept or refused, never capped."""
        return _given(self.max_tokens)

    def check_vocab(self, vocab_size: int) -> None:
        """Raise InvalidRequestError when a token id named here isn't in a vocabulary of `vocab_size`."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids,
            "logit_bias": self.logit_bias,
        }
        for name, ids in named.items():
            _inside(name, ids, vocab_size)


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Parameters of beam search: names as vLLM's users know them where vLLM has them, the search itself as in Hugging Face
    transformers' `generate(num_beams=beam_width, ...)`.

    Built once, never mutated, and shared freely between requests.  `check_vocab` checks what needs a model.

    beam_width: beams that live side by side.  n: hypotheses returned, the best first; None means `beam_width`.
    max_tokens: as in SamplingParams.
    length_penalty: hypotheses are ranked by (sum of logprobs) / (generated tokens) ** length_penalty, the ending EOS counted; above 0
        it favours long ones, below 0 short ones.  In [-4, 4].
    early_stopping: when to end once `beam_width` hypotheses have finished.  True: at once.  False: when the best live beam, at its
        present length, is no better than the worst of them.  "never": when it can't get better up to `max_tokens` either.
    temperature: 0 and nothing else: the search draws nothing, and ranks by the model's own log-softmax in float32.  (vLLM takes any
        value and then disregards it.)
    ignore_eos, stop_token_ids, skip_special_tokens, include_stop_str_in_output: as in SamplingParams; the last decides whether the
        spelling of the id that ended a hypothesis is in its text.

    Raises InvalidRequestError.
    """

    beam_width: int
    n: int | None = None
    max_tokens: int | None = MAX_TOKENS_DEFAULT
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    temperature: float = 0.0
    ignore_eos: bool = False
    stop_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        _whole("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        if self.n is not None:
            _whole("n", self.n, 1, MAX_BEAM_WIDTH)
            if self.n > self.beam_width:
                raise InvalidRequestError(f"n={self.n} is above beam_width={self.beam_width}; lower it or raise beam_width")
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequestError(f"early_stopping={self.early_stopping!r} must be True, False or 'never'")
        _number("temperature", self.temperature, 0.0, math.inf)
        if self.temperature >= GREEDY_BELOW:
            raise InvalidRequestError(
                f"temperature={self.temperature} would change nothing: beam search draws no tokens; leave it at 0, "
                "or use SamplingParams to draw"
            )
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            _flag(name, getattr(self, name))
        object.__setattr__(self, "length_penalty", float(self.length_penalty))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))

    @property
    def num_returned(self) -> int:
        return self.beam_width if self.n is None else self.n

    @property
    def max_tokens_given(self) -> bool:
        """As of SamplingParams."""
        return _given(self.max_tokens)

    def check_vocab(self, vocab_size: int, eos_token_ids: Collection[int] = ()) -> None:
        """Raise InvalidRequestError when a vocabulary of `vocab_size` lacks an id named here, or can't feed so many beams.

        eos_token_ids: the model's, which end a hypothesis, too, unless `ignore_eos`.
        """
        _inside("stop_token_ids", self.stop_token_ids, vocab_size)
        stops = len({*(self.stop_token_ids or ()), *(() if self.ignore_eos else eos_token_ids)})
        if self.beam_width > vocab_size - stops:
            raise InvalidRequestError(
                f"beam_width={self.beam_width} is above the {vocab_size - stops} ids with which a beam can go on (a vocabulary of "
                f"{vocab_size}, of which {stops} end it); lower beam_width to at most that"
            )


def _given(max_tokens: int | None) -> bool:
    return max_tokens is not None and not isinstance(max_tokens, _Unset)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}={value!r} must be True or False")


def _inside(name: str, ids: Iterable[int] | None, vocab_size: int) -> None:
    for token in ids or ():
        if token >= vocab_size:
            raise InvalidRequestError(f"{name} names token id {token}; this model's ids are 0 to {vocab_size - 1}")


def _whole(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name}={value!r} must be a whole number")
    if value < low or (high is not None and value > high):
        raise InvalidRequestError(f"{name}={value} must be at least {low}" + ("" if high is None else f" and at most {high}"))


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequestError(f"{name}={value!r} must be a finite number")
    if value < low or value > high or (open_low and value == low):
        above = "above" if open_low else "at least"
        raise InvalidRequestError(f"{name}={value} must be {above} {low:g}" + ("" if high == math.inf else f" and at most {high:g}"))


def _sequence(name: str, given: Any, what: str) -> tuple[Any, ...]:
    if given is None:
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | Set):
        raise InvalidRequestError(f"{name}={given!r} must be a list of {what}")
    return tuple(given)


def _texts(name: str, given: Any, limit: int) -> tuple[str, ...]:
    values = _sequence(name, [given] if isinstance(given, str) else given, "strings")
    if len(values) > limit:
        raise InvalidRequestError(f"{name} has {len(values)} entries; at most {limit} are taken")
    for value in values:
        if not isinstance(value, str) or not value:
            raise InvalidRequestError(f"{name} has the entry {value!r}; each must be a non-empty string")
    return values


def _ids(name: str, given: Any) -> tuple[int, ...]:
    values = _sequence(name, given, "token ids")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequestError(f"{name} has the entry {value!r}; each must be a token id of 0 or more")
    return values


def _bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidRequestError(f"logit_bias={bias!r} must be a mapping of token ids to numbers")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise InvalidRequestError(f"logit_bias has the key {key!r}; each must be a token id of 0 or more")
        _number(f"logit_bias[{token}]", value, -100.0, 100.0)
        checked[token] = float(value)
    return checked
