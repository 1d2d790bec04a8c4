"""What a request gives back."""

from dataclasses import dataclass
from typing import Literal

from octavo.core.plan import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample's text so far (in a delta: only what is new).

    finish_reason: None while running; stop_reason: the stop string or token id that ended it (None for EOS).
    seed: with (seed, index) the same tokens come again.  error: the cause when finish_reason is "error".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's outputs, one per sample in index order.

    num_cached_tokens: prompt tokens that were read from memory instead of computed, at first admission.
    prompt_logprobs: one entry per prompt token, the first None (nothing precedes it).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
