"""What a request gives back."""

from dataclasses import dataclass
from typing import Literal

from octavo.core.plan import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]

# Why the first token that had to be computed was not read from memory:
#   no match: nothing like it was ever computed under this key, as far as the tenant's own memory goes;
#   evicted: it was there, and gave way;
#   key differs: it is there under another key of the same tenant and salt (the field that differs is named);
#   below the copy's worth: it is there, but so little that copying takes longer than computing;
#   no room to copy: it is there in a block that others use or that is kept, and there was no block for a copy;
#   prompt logprobs asked: they are made only by computing;
#   unknown: more was evicted than is remembered.
MissReason = Literal[
    "no match", "evicted", "key differs", "below the copy's worth", "no room to copy", "prompt logprobs asked", "unknown"
]


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What one sample's prompt got from memory at first admission, in tokens, and why not more.

    num_tokens: read instead of computed, all together.  num_published: of these, from published prefixes.  num_forked: of these,
        shared with the first sample of the same request.
    miss: None when everything was found.  miss_field: for "key differs", the first field of the key that does.
    """

    num_tokens: int = 0
    num_published: int = 0
    num_forked: int = 0
    miss: MissReason | None = None
    miss_field: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample's text so far (in a delta: only what is new).

    finish_reason: None while running; stop_reason: the stop string or token id that ended it (None for EOS).
    seed: with (seed, index) the same tokens come again.  error: the cause when finish_reason is "error".
    cumulative_logprob: the sum of the chosen tokens' logprobs, for results that were ranked (best_of, beam search).
    score: what a beam search ranked it by: that sum / length ** length_penalty.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cumulative_logprob: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's outputs, one per sample in index order.

    num_cached_tokens: prompt tokens that were read from memory instead of computed, at first admission (of the first sample).
    cache: where these came from, and why not more (None: never admitted).
    prompt_logprobs: one entry per prompt token, the first None (nothing precedes it).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    cache: CacheReport | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
