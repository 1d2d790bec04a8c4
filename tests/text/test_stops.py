"""Stop strings: never shown, found wherever the text is cut, at a flat cost."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.text import StopChecker

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def stopped(pieces, stops, include=False):
    """(deltas, text, match), the checker being told the end where no stop came."""
    checker = StopChecker(stops, include=include)
    deltas = []
    for piece in pieces:
        deltas.append(checker.push(piece))
        if checker.matched is not None:
            break
    else:
        deltas.append(checker.flush())
    return deltas, "".join(deltas), checker.matched


def oracle(text, stops, include):
    """Letter by letter: the first end at which a stop string is complete; the longest of those that end there."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


@given(LETTERS, STOPS, st.booleans(), st.lists(st.integers(1, 5), max_size=12))
@example("abab", ["ba", "aba"], False, [4])
def test_the_result_does_not_depend_on_the_cuts(text, stops, include, sizes):
    """K07-01, 02, 06: no character of the match comes out, nothing before it is lost, however tokens and chunks lie."""
    pieces, place = [], 0
    for size in [*sizes, len(text)]:
        pieces.append(text[place : place + size])
        place += size
    _, shown, match = stopped(pieces, stops, include)
    assert (shown, match) == oracle(text, stops, include)


@given(LETTERS, STOPS)
def test_only_the_head_of_a_stop_is_held(text, stops):
    checker = StopChecker(stops)
    shown = ""
    for i, letter in enumerate(text):
        shown += checker.push(letter)
        if checker.matched is not None:
            break
        held = text[len(shown) : i + 1]
        possible = [end for end in range(i + 2) if any(stop.startswith(text[end : i + 1]) for stop in stops)]
        assert len(shown) == min(possible)
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize("size", [1, 4, 10])
@pytest.mark.parametrize("offset", range(10))
def test_a_marker_at_every_alignment_to_the_chunks(size, offset):
    """K07-06."""
    text = "x" * offset + "<|marker|>" + "after"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    deltas, shown, match = stopped(pieces, ["<|marker|>"])
    assert shown == "x" * offset and match == "<|marker|>"
    assert not any("<" in delta for delta in deltas)


def test_cut_exactly_before_the_match_or_after_it():
    """K07-02."""
    pieces = ["alpha be", "ta gam", "ma delta"]
    assert stopped(pieces, ["beta gamma"])[1:] == ("alpha ", "beta gamma")
    assert stopped(pieces, ["beta gamma"], include=True)[1:] == ("alpha beta gamma", "beta gamma")
    assert stopped(pieces, ["gamma delta!"])[1:] == ("alpha beta gamma delta", None)


def test_nothing_comes_after_a_match():
    checker = StopChecker(["b"])
    assert checker.push("abab") == "a"
    assert checker.push("more") == "" and checker.flush() == ""


def test_the_cost_of_a_piece_is_flat():
    """K12-02."""

    def cost(pieces):
        best = float("inf")
        for _ in range(5):
            checker = StopChecker(["\n\nUser:", "STOP", "<|end|>", "of tea"])
            began = time.thread_time()
            for _ in range(pieces):
                checker.push(" of the")
            best = min(best, (time.thread_time() - began) / pieces)
        return best

    assert cost(16_000) < 6 * cost(500)
