"""`SequenceUpdate`: what one step brought to one sequence."""

from dataclasses import dataclass

from octavo.core.outputs import FinishReason
from octavo.core.plan import TokenLogprobs
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """token_id: the new token, or None when the step brought none (a part of a prompt; an error).

    logprobs: of that token, when asked for.
    prompt_logprobs: the next entries of the prompt's, in order and without gaps over all updates of a sequence; the first entry
        is of the prompt's second token.
    num_cached_tokens: prompt tokens that were read from memory instead of computed, at first admission.
    finish_reason, stop_reason, error: as in CompletionOutput; a sequence with a finish_reason gets no further update.
    """

    seq_id: int
    request_id: str
    sample_index: int
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


def update_of(
    sequence: Sequence,
    *,
    prompt_logprobs: tuple[TokenLogprobs, ...] = (),
    finish_reason: FinishReason | None = None,
    stop_reason: str | int | None = None,
    error: str | None = None,
) -> SequenceUpdate:
    """An update that brings no token."""
    return SequenceUpdate(
        seq_id=sequence.seq_id,
        request_id=sequence.request.request_id,
        sample_index=sequence.sample_index,
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=sequence.num_cached_at_first or 0,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        error=error,
    )
