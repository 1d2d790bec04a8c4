"""The rules of beam search by hand, where equal scores are equal: log-probabilities are multiples of 1/4, so that sums are exact."""

import math
from array import array
from dataclasses import FrozenInstanceError, dataclass, field

import pytest
import torch
from beam_searches import Candidates, Early, likeliest, new_search

from octavo.core.errors import InvariantError
from octavo.core.params import BeamSearchParams
from octavo.scheduler.beams import Beam, BeamSearch, Hypothesis

VOCAB = 211


@dataclass
class Table:
    """Log-probabilities by what was generated; ids that aren't named follow far behind, each further down."""

    vocab: int
    rows: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)

    def candidates(self, search: BeamSearch) -> list[Candidates]:
        return [self._row(beam.token_ids)[: search.candidates_per_beam] for beam in search.beams]

    def _row(self, tokens: tuple[int, ...]) -> Candidates:
        row = {token: -1000.0 - token for token in range(self.vocab)} | self.rows.get(tokens, {})
        return sorted(row.items(), key=lambda pair: (-pair[1], pair[0]))

    def step(self, search: BeamSearch) -> BeamSearch:
        return search.advance(self.candidates(search))


def alive(search: BeamSearch) -> list[tuple[int, int, float]]:
    return [(beam.parent, beam.token_id, beam.score) for beam in search.beams]


def test_the_first_step_has_one_beam() -> None:
    search = new_search(3, (0,))
    assert len(search.beams) == 1 and not search.is_over and search.results == ()
    search = Table(9, {(): {4: -1.0, 7: -2.0, 5: -3.0}}).step(search)
    assert alive(search) == [(0, 4, -1.0), (0, 7, -2.0), (0, 5, -3.0)]
    assert [beam.token_ids for beam in search.beams] == [(4,), (7,), (5,)]


def test_equal_scores_of_one_beam_go_by_token_id() -> None:
    table = Table(9, {(): {8: -1.0, 3: -1.0, 6: -1.0, 2: -1.0}})
    assert alive(table.step(new_search(3, (0,)))) == [(0, 2, -1.0), (0, 3, -1.0), (0, 6, -1.0)]


def test_equal_scores_go_by_parent_before_token_id() -> None:
    table = Table(9, {(): {5: -1.0, 4: -2.0}, (5,): {8: -3.0, 7: -3.0}, (4,): {1: -2.0, 2: -2.0}})
    search = table.step(new_search(2, (0,)))
    assert [beam.token_id for beam in search.beams] == [5, 4]
    search = table.step(search)
    assert alive(search) == [(0, 7, -4.0), (0, 8, -4.0)]
    assert [beam.token_ids for beam in search.beams] == [(5, 7), (5, 8)]


# 2**24 is as far as float32 counts by ones: added to it, a log-probability above -1 changes nothing.
FAR = -(2.0**24)


def far_search() -> BeamSearch:
    search = new_search(1, (0,), max_tokens=4)
    return BeamSearch(search.params, 4, search.stop_token_ids, (Beam(0, 5, FAR, FAR, search.beams[0]),), length=1)


def test_scores_that_are_equal_only_as_float32_go_by_token_id() -> None:
    search = far_search().advance([[(7, -0.25), (3, -0.5)]])
    assert alive(search) == [(0, 3, FAR)]
    assert search.beams[0].logprobs == (FAR, -0.5)


def test_what_lies_behind_the_needed_candidates_is_not_looked_at() -> None:
    """Else the outcome would depend on how many were brought: id 2 has the same score as 3 and 7, and the lowest id."""
    assert alive(far_search().advance([[(7, -0.25), (3, -0.5), (2, -0.625)]])) == [(0, 3, FAR)]


def test_a_tie_at_the_last_place_decides_whether_a_beam_ends() -> None:
    """The ended id 3 and the running id 6 are equal, and one place is left among the best two: the lower id has it."""
    rows: dict[tuple[int, ...], dict[int, float]] = {(): {4: -1.0, 3: -2.0, 6: -2.0, 7: -3.0}}
    ends = Table(9, rows).step(new_search(2, (3,)))
    assert [one.token_ids for one in ends.hypotheses] == [(3,)]
    assert [beam.token_id for beam in ends.beams] == [4, 6]
    goes_on = Table(9, rows).step(new_search(2, (6,)))
    assert goes_on.hypotheses == ()
    assert [beam.token_id for beam in goes_on.beams] == [4, 3]


def test_the_older_of_two_equal_hypotheses_goes_first() -> None:
    table = Table(9, {(): {4: -1.0, 0: -2.0}, (4,): {0: -1.0, 5: -1.5}})
    search = table.step(new_search(2, (0,), length_penalty=0.0, early_stopping=True))
    search = table.step(search)
    assert search.is_over
    assert [(one.token_ids, one.score) for one in search.results] == [((0,), -2.0), ((4, 0), -2.0)]


def test_equal_hypotheses_of_one_step_go_by_parent_then_token_id() -> None:
    table = Table(9, {(): {5: -1.0, 4: -2.0}, (5,): {8: -3.0, 1: -3.0}, (4,): {0: -2.0}})
    search = table.step(table.step(new_search(3, (0, 1, 8), max_tokens=2)))
    assert [one.token_ids for one in search.results] == [(5, 1), (5, 8), (4, 0)]
    assert {one.score for one in search.results} == {-2.0}


def test_a_finished_one_that_is_not_among_the_best_is_lost() -> None:
    """Third of two: it neither ends nor goes on."""
    table = Table(9, {(): {4: -1.0, 5: -2.0, 0: -3.0, 6: -4.0}})
    search = table.step(new_search(2, (0,)))
    assert search.hypotheses == ()
    assert [beam.token_id for beam in search.beams] == [4, 5]


def test_when_every_stop_id_is_likeliest_as_many_beams_go_on() -> None:
    stops = (0, 1, 2)
    rows = {(): {0: -0.25, 1: -0.5, 2: -0.75, 3: -5.0, 4: -6.0}}
    search = new_search(2, stops, early_stopping="never")
    assert search.candidates_per_beam == 5
    search = Table(9, rows).step(search)
    assert [beam.token_id for beam in search.beams] == [3, 4]
    assert [one.token_ids for one in search.hypotheses] == [(0,), (1,)]


def test_at_the_longest_the_best_end_whatever_their_last_id() -> None:
    table = Table(9, {(): {4: -1.0, 5: -2.0}, (4,): {0: -1.0, 6: -4.0}, (5,): {7: -1.0}})
    search = table.step(table.step(new_search(2, (0,), max_tokens=2)))
    assert search.is_over and search.length == 2
    assert [(one.token_ids, one.finish_reason) for one in search.results] == [((4, 0), "stop"), ((5, 7), "length")]


@pytest.mark.parametrize(
    ("early", "penalty", "running", "over"),
    [
        (True, 1.0, -1.0, True),  # two have finished: at once, however good what runs
        (False, 1.0, -2.0, True),  # no better than the worst, -2: equal is not better
        (False, 1.0, -1.75, False),
        (False, 0.0, -1.75, False),
        ("never", 1.0, -7.75, False),  # up to four tokens: -7.75 / 4 is above -2
        ("never", 1.0, -8.0, True),
        ("never", 0.0, -2.0, True),  # without a penalty it can only fall
        ("never", -1.0, -2.0, True),
    ],
)
def test_when_no_better_one_is_expected_it_is_over(early: Early, penalty: float, running: float, over: bool) -> None:
    """Hypotheses stand at -0.5 and -2.0; after one more token the best live beam's sum is `running`."""
    params = BeamSearchParams(beam_width=2, early_stopping=early, length_penalty=penalty)
    search = BeamSearch(params, 4, frozenset((0,)), hypotheses=(finished(-0.5), finished(-2.0)))
    search = Table(9, {(): {4: running, 5: -9.0}}).step(search)
    assert [one.score for one in search.hypotheses] == [-0.5, -2.0]
    assert search.is_over is over


def finished(score: float) -> Hypothesis:
    return Hypothesis((1,), (score,), score, score, "stop")


def test_a_later_better_one_takes_the_place_of_the_worst() -> None:
    table = Table(9, {(): {0: -1.0, 1: -4.0, 4: -4.0, 5: -9.0}, (4,): {0: -0.25, 6: -9.0}})
    search = table.step(new_search(2, (0, 1), max_tokens=5, early_stopping="never", length_penalty=1.0))
    assert [one.token_ids for one in search.hypotheses] == [(0,), (1,)] and not search.is_over
    search = table.step(search)
    assert [(one.token_ids, one.score) for one in search.hypotheses] == [((0,), -1.0), ((4, 0), -2.125)]


@pytest.mark.parametrize(("penalty", "first"), [(0.0, (4, 0)), (-1.0, (1,))])
def test_below_zero_a_penalty_ranks_the_shorter_first(penalty: float, first: tuple[int, ...]) -> None:
    """The sums are -2 over two tokens and -3 over one; the penalty of -1 makes -4 and -3 of them."""
    table = Table(9, {(): {4: -1.0, 1: -3.0}, (4,): {0: -1.0, 6: -9.0}})
    search = table.step(table.step(new_search(2, (0, 1), length_penalty=penalty, early_stopping=True)))
    assert search.is_over and len(search.results) == 2
    assert search.results[0].token_ids == first


def test_more_candidates_than_needed_change_nothing() -> None:
    generator = torch.Generator().manual_seed(5)
    narrow = wide = new_search(3, (0, 1), max_tokens=8, early_stopping="never")
    while not narrow.is_over:
        rows = torch.log_softmax(torch.randn(len(narrow.beams), VOCAB, generator=generator), dim=-1)
        narrow = narrow.advance([likeliest(row, narrow.candidates_per_beam) for row in rows])
        wide = wide.advance([likeliest(row, VOCAB) for row in rows])
        assert alive(narrow) == alive(wide)
    assert narrow.results == wide.results and wide.is_over


def test_a_search_is_a_value() -> None:
    """A step that is dropped is advanced again from the same search, and gives the same."""
    table = Table(9, {(): {4: -1.0, 0: -2.0}})
    before = new_search(2, (0,))
    first, again = table.step(before), table.step(before)
    assert before.length == 0 and len(before.beams) == 1 and before.hypotheses == ()
    assert alive(first) == alive(again) and first.hypotheses == again.hypotheses
    with pytest.raises(FrozenInstanceError):
        before.length = 1  # type: ignore[misc]


def test_log_probabilities_of_minus_infinity_are_the_last_resort() -> None:
    table = Table(5, {(): {2: -1.0, **dict.fromkeys((0, 1, 3, 4), -math.inf)}})
    search = table.step(new_search(2, (0,), max_tokens=2))
    assert alive(search) == [(0, 2, -1.0), (0, 1, -math.inf)]
    search = table.step(search)
    assert search.is_over and search.results[0].token_ids[0] == 2


@pytest.mark.parametrize("penalty", [-4.0, 4.0])
def test_the_widest_penalties_stay_in_float32(penalty: float) -> None:
    """A quotient that float32 can't hold would be an error, or the same for all."""
    longest = 2**31 - 1
    search = new_search(1, (0,), max_tokens=longest, length_penalty=penalty)
    near_end = BeamSearch(search.params, longest, search.stop_token_ids, search.beams, (), longest - 1)
    last = Table(9, {(): {4: -3.0}}).step(near_end)
    (one,) = last.results
    assert one.score == array("f", [-3.0 / 2.0 ** (31 * penalty)])[0]
    assert one.score < 0 and math.isfinite(one.score)


def test_a_long_chain_of_tokens_is_read_and_given_back() -> None:
    length = 200_000
    beam = new_search(1, (0,)).beams[0]
    for token in range(length):
        beam = Beam(0, token, -1.0, -1.0 - token, beam)
    assert beam.token_ids == tuple(range(length)) and len(beam.logprobs) == length
    del beam  # one by one: a recursion as deep as this would end the process


def test_a_fault_of_the_runner_is_named() -> None:
    search = new_search(2, (0,))
    with pytest.raises(InvariantError, match="2 beams brought candidates, but 1 are alive"):
        search.advance([[(1, -1.0)] * 3] * 2)
    with pytest.raises(InvariantError, match="brought 2 candidates; beam_width=2 and 1 stop ids need 3"):
        search.advance([[(1, -1.0), (2, -2.0)]])
    table = Table(9)
    over = table.step(new_search(2, (0,), max_tokens=1))
    with pytest.raises(InvariantError, match="ended after 1 tokens"):
        over.advance([])
