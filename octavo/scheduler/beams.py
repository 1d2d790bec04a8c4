"""`BeamSearch`: which continuations of a group of beams live on, which end, and when no better one can come."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from octavo.core.errors import InvariantError
from octavo.core.params import BeamSearchParams


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Beam:
    """A live beam: its newest token, and the chain of beams that it grew from.

    parent: which of the beams before it continues (an index into the `beams` of the search that was advanced).
    logprob: of its newest token.  score: the sum over its tokens, added up in float32.  previous: None for the prompt itself.
    """

    parent: int
    token_id: int
    logprob: float
    score: float
    previous: "Beam | None"

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated ids, oldest first; none for the prompt.  O(length)."""
        return tuple(beam.token_id for beam in self._chain())[::-1]

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The log-probability of each generated id.  O(length)."""
        return tuple(beam.logprob for beam in self._chain())[::-1]

    def _chain(self) -> "Iterator[Beam]":
        beam = self
        while beam.previous is not None:
            yield beam
            beam = beam.previous


# Where every search begins: one beam that holds the prompt and has generated nothing.
PROMPT = Beam(parent=0, token_id=-1, logprob=0.0, score=0.0, previous=None)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam.

    token_ids, logprobs: what was generated, the id that ended it included.  cumulative_logprob: their float32 sum.
    score: that sum / len(token_ids) ** length_penalty, in float32; what hypotheses are ranked by.
    finish_reason: "stop" when its last id is one of the search's stop ids, else "length".
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cumulative_logprob: float
    score: float
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, eq=False)
class BeamSearch:
    """One group of beams between two steps.  A pure value: `advance` returns the next one and mutates nothing.

    The rules, bit for bit, are those of `generate(num_beams=...)` in Hugging Face transformers 5 (`GenerationMixin._beam_search`).
    Where they leave the order of equal scores open, the lower parent goes first, then the lower token id; among hypotheses of
    different steps, the older.

    params: the caller's.  max_tokens: the longest a hypothesis may get, resolved (`Request.max_tokens`).
    stop_token_ids: ids that end a hypothesis (`Request.stop_token_ids`: EOS unless ignored, and the caller's).
    beams: the live ones, best first: `beam_width` of them, except one (the prompt) before the first step and none once it is over.
    hypotheses: the best that have finished, at most `beam_width`, best first.  length: generated tokens in each live beam.
    """

    params: BeamSearchParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    beams: tuple[Beam, ...] = (PROMPT,)
    hypotheses: tuple[Hypothesis, ...] = ()
    length: int = 0

    @property
    def candidates_per_beam(self) -> int:
        """How many of its likeliest tokens each beam must bring: enough that, when every stop id is among them, `beam_width` go on."""
        return self.params.beam_width + len(self.stop_token_ids)

    @property
    def is_over(self) -> bool:
        return not self.beams

    @property
    def results(self) -> tuple[Hypothesis, ...]:
        """The hypotheses to return, best first: `num_returned` of them once the search is over."""
        return self.hypotheses[: self.params.num_returned]

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> "BeamSearch":
        """The search after one more token: each of the new `beams` names the beam that it continues, and its token.

        candidates: for each live beam, in order, its `candidates_per_beam` likeliest (token id, log-probability) pairs: of float32
            log-softmax over the whole vocabulary, best first, equal ones by the lower id.  Further pairs are not looked at, so
            that the outcome doesn't depend on how many were brought.
        Raises InvariantError when the search is over, or when beams or candidates are missing.
        """
        self._check(candidates)
        width, stops = self.params.beam_width, self.stop_token_ids
        length = self.length + 1
        at_the_end = length >= self.max_tokens
        ranked = self._ranked(candidates)

        # Only what is among the best `beam_width` may finish; those further down are there so that as many go on.
        ended = [beam for beam in map(self._grown, ranked[:width]) if at_the_end or beam.token_id in stops]
        # A stable sort: at equal scores the older one stays ahead.
        hypotheses = sorted((*self.hypotheses, *(self._finished(beam, length) for beam in ended)), key=lambda one: -one.score)
        hypotheses = hypotheses[:width]

        beams: tuple[Beam, ...] = ()
        if not at_the_end:
            beams = tuple(map(self._grown, islice((one for one in ranked if one[2] not in stops), width)))
            if len(hypotheses) == width and not self._can_improve(beams[0], length, hypotheses[-1]):
                beams = ()
        return replace(self, beams=beams, hypotheses=tuple(hypotheses), length=length)

    def _check(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> None:
        if self.is_over:
            raise InvariantError(f"this beam search ended after {self.length} tokens; it can't be advanced")
        if len(candidates) != len(self.beams):
            raise InvariantError(f"{len(candidates)} beams brought candidates, but {len(self.beams)} are alive")
        fewest = min(map(len, candidates))
        if fewest < self.candidates_per_beam:
            raise InvariantError(
                f"a beam brought {fewest} candidates; beam_width={self.params.beam_width} and "
                f"{len(self.stop_token_ids)} stop ids need {self.candidates_per_beam}"
            )

    def _ranked(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, int, int, float]]:
        """All candidates as (-score, parent, token id, logprob), best first: the order of the tuples is the order of the law."""
        ranked = []
        for parent, (beam, all_offered) in enumerate(zip(self.beams, candidates, strict=True)):
            offered = all_offered[: self.candidates_per_beam]
            scores = array("f", [beam.score + logprob for _, logprob in offered])
            ranked += [(-score, parent, token, logprob) for score, (token, logprob) in zip(scores, offered, strict=True)]
        return sorted(ranked)

    def _grown(self, candidate: tuple[float, int, int, float]) -> Beam:
        minus_score, parent, token, logprob = candidate
        return Beam(parent, token, logprob, -minus_score, self.beams[parent])

    def _finished(self, beam: Beam, length: int) -> Hypothesis:
        return Hypothesis(
            token_ids=beam.token_ids,
            logprobs=beam.logprobs,
            cumulative_logprob=beam.score,
            score=self._normalised(beam.score, length),
            finish_reason="stop" if beam.token_id in self.stop_token_ids else "length",
        )

    def _can_improve(self, best: Beam, length: int, worst: Hypothesis) -> bool:
        """Whether the search goes on although `beam_width` hypotheses have finished; `worst` is the last of them.

        A beam's sum only falls, but with length_penalty > 0 its score may still rise as it grows.  "never" bounds that rise;
        False disregards it, so with length_penalty > 0 it may give up a beam that would have won.
        """
        if self.params.early_stopping is True:
            return False
        if self.params.early_stopping == "never" and self.params.length_penalty > 0:
            length = self.max_tokens  # the most that its present sum could be worth
        return self._normalised(best.score, length) > worst.score

    def _normalised(self, total: float, length: int) -> float:
        return _float32(total / _float32(length**self.params.length_penalty))


def _float32(value: float) -> float:
    """The nearest float32.  A sum or quotient of two float32 that is rounded to double first and then to float32 is the one that
    float32 arithmetic gives (Figueroa 1995, "When is double rounding innocuous?"), so the deciding side needs no numpy for it.
    """
    return array("f", (value,))[0]
