"""What a beam search asks of sampling: its beams report their likeliest tokens, and draw nothing."""

from collections.abc import Collection

from octavo.core.errors import InvalidRequestError
from octavo.core.params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from octavo.scheduler.beams import BeamSearch


def sampling_of(beam: BeamSearchParams, vocab_size: int, eos_token_ids: Collection[int]) -> SamplingParams:
    """The parameters of the request that carries `beam`: logprobs as the search takes them of each beam, outputs as it returns them.

    eos_token_ids: the model's.  Raises InvalidRequestError for ids that a vocabulary of `vocab_size` lacks, and for more candidates
    than logprobs are made.
    """
    beam.check_vocab(vocab_size, eos_token_ids)
    stops = frozenset((*(() if beam.ignore_eos else eos_token_ids), *(beam.stop_token_ids or ())))
    candidates = BeamSearch(beam, 1, stops).candidates_per_beam
    if candidates > MAX_LOGPROBS:
        raise InvalidRequestError(
            f"beam_width={beam.beam_width} and {len(stops)} ids that end a beam take the {candidates} likeliest tokens of each,"
            f" and at most {MAX_LOGPROBS} are made; name fewer stop_token_ids or lower beam_width"
        )
    return SamplingParams(
        temperature=0.0,
        n=beam.num_returned,
        logprobs=candidates,
        max_tokens=beam.max_tokens,
        ignore_eos=beam.ignore_eos,
        stop_token_ids=beam.stop_token_ids,
        skip_special_tokens=beam.skip_special_tokens,
        include_stop_str_in_output=beam.include_stop_str_in_output,
    )
