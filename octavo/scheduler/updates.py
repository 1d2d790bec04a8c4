"""`SequenceUpdate`: what one step brought to one sequence."""

from dataclasses import dataclass

from octavo.core.outputs import CacheReport, FinishReason
from octavo.core.plan import TokenLogprobs
from octavo.scheduler.beams import Hypothesis
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """token_id: the new token, or None when the step brought none (a part of a prompt; an error).

    logprobs: of that token, when asked for.
    prompt_logprobs: the next entries of the prompt's, in order and without gaps over all updates of a sequence; the first entry
        is of the prompt's second token.
    cache: what the prompt got from memory at first admission; None as long as it has not been admitted.
    hypothesis: a beam search's result number `sample_index`, all of it; such a request brings nothing before.
    finish_reason, stop_reason, error: as in CompletionOutput; a sequence with a finish_reason gets no further update.
    """

    seq_id: int
    request_id: str
    sample_index: int
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cache: CacheReport | None = None
    hypothesis: Hypothesis | None = None
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
        cache=sequence.cache,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        error=error,
    )


def hypothesis_updates(sequence: Sequence, hypotheses: tuple[Hypothesis, ...]) -> list[SequenceUpdate]:
    """The results of the beam search that `sequence` is the last beam of, best first."""
    return [
        SequenceUpdate(
            seq_id=sequence.seq_id,
            request_id=sequence.request.request_id,
            sample_index=index,
            cache=sequence.cache,
            hypothesis=hypothesis,
            finish_reason=hypothesis.finish_reason,
        )
        for index, hypothesis in enumerate(hypotheses)
    ]
