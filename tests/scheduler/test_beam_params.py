"""`BeamSearchParams`: what is taken, what is refused, and what a refusal says."""

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.params import MAX_BEAM_WIDTH, MAX_LENGTH_PENALTY, BeamSearchParams


def test_defaults() -> None:
    params = BeamSearchParams(beam_width=4)
    assert (params.max_tokens, params.length_penalty, params.early_stopping, params.temperature) == (16, 1.0, False, 0.0)
    assert (params.ignore_eos, params.skip_special_tokens, params.include_stop_str_in_output) == (False, True, False)
    assert params.stop_token_ids == () and params.num_returned == 4
    with pytest.raises(FrozenInstanceError):
        params.beam_width = 2  # type: ignore[misc]
    assert hash(params) == hash(BeamSearchParams(beam_width=4))


def test_a_default_length_is_told_from_a_given_one() -> None:
    assert not BeamSearchParams(beam_width=2).max_tokens_given
    assert not BeamSearchParams(beam_width=2, max_tokens=None).max_tokens_given
    assert BeamSearchParams(beam_width=2, max_tokens=16).max_tokens_given


def test_the_bounds_themselves_are_taken() -> None:
    params = BeamSearchParams(
        beam_width=MAX_BEAM_WIDTH, n=1, max_tokens=2**31 - 1, length_penalty=-MAX_LENGTH_PENALTY, early_stopping="never"
    )
    assert params.num_returned == 1
    assert BeamSearchParams(beam_width=3, n=3, length_penalty=MAX_LENGTH_PENALTY, early_stopping=True, temperature=0).num_returned == 3
    assert isinstance(BeamSearchParams(beam_width=3, length_penalty=2).length_penalty, float)
    assert BeamSearchParams(beam_width=1, stop_token_ids=[5, 7]).stop_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"beam_width": 0}, "beam_width=0 must be at least 1 and at most 256"),
        ({"beam_width": 257}, "beam_width=257 must be at least 1 and at most 256"),
        ({"beam_width": True}, "beam_width=True must be a whole number"),
        ({"beam_width": 2.0}, "beam_width=2.0 must be a whole number"),
        ({"n": 0}, "n=0 must be at least 1"),
        ({"n": 5}, "n=5 is above beam_width=4; lower it or raise beam_width"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"max_tokens": 2**31}, "max_tokens=2147483648 must be at least 1 and at most 2147483647"),
        ({"length_penalty": 4.5}, "length_penalty=4.5 must be at least -4 and at most 4"),
        ({"length_penalty": -5}, "length_penalty=-5 must be at least -4"),
        ({"length_penalty": math.nan}, "length_penalty=nan must be a finite number"),
        ({"length_penalty": "1"}, "length_penalty='1' must be a finite number"),
        ({"early_stopping": "always"}, "early_stopping='always' must be True, False or 'never'"),
        ({"early_stopping": 1}, "early_stopping=1 must be True, False or 'never'"),
        ({"early_stopping": None}, "early_stopping=None must be True, False or 'never'"),
        ({"temperature": 0.7}, "temperature=0.7 would change nothing: beam search draws no tokens; leave it at 0"),
        ({"temperature": -1}, "temperature=-1 must be at least 0"),
        ({"ignore_eos": 1}, "ignore_eos=1 must be True or False"),
        ({"skip_special_tokens": None}, "skip_special_tokens=None must be True or False"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output='yes' must be True or False"),
        ({"stop_token_ids": [-1]}, "stop_token_ids has the entry -1"),
        ({"stop_token_ids": 3}, "stop_token_ids=3 must be a list of token ids"),
    ],
)
def test_what_can_never_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        BeamSearchParams(**{"beam_width": 4} | wrong)
    assert says in str(raised.value)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    params = BeamSearchParams(beam_width=2, stop_token_ids=[99])
    params.check_vocab(100)
    with pytest.raises(InvalidRequestError, match="stop_token_ids names token id 99; this model's ids are 0 to 98"):
        params.check_vocab(99)


def test_more_beams_than_the_vocabulary_can_feed_are_refused() -> None:
    params = BeamSearchParams(beam_width=7, stop_token_ids=[1, 2])
    params.check_vocab(10, eos_token_ids=(2,))  # 2 is named twice, and counts once
    with pytest.raises(InvalidRequestError, match="beam_width=7 is above the 6 ids with which a beam can go on") as raised:
        params.check_vocab(10, eos_token_ids=(2, 3, 3, 4))
    assert "a vocabulary of 10, of which 4 end it" in str(raised.value)
    BeamSearchParams(beam_width=7, stop_token_ids=[1, 2], ignore_eos=True).check_vocab(10, eos_token_ids=(3, 4))
