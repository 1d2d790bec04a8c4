"""The reference operations against plain formulas, and at the edges of float32."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_oracle import distribution

from octavo.core.params import SamplingParams
from octavo.kernels.reference_sampling import ReferenceSamplingOps
from octavo.kernels.sampling_ops import NO_TOKEN, Draw

OPS = ReferenceSamplingOps()
INF = math.inf


def row(*values):
    return torch.tensor(values, dtype=torch.float32)


def draw(ops, logits, *how):
    (token,) = ops.draw_rows([logits], [Draw(*how)])
    return token


# Few distinct values, so that ties are common; some tokens masked.
ROWS = st.lists(st.sampled_from([-INF, -30.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0, 80.0]), min_size=1, max_size=12).filter(
    lambda values: max(values) > -INF
)


def test_argmax_takes_the_lowest_id_and_marks_unusable_rows():
    logits = torch.stack(
        [row(1, 5, 5, 0), row(-INF, -INF, -3, -INF), row(1, math.nan, 9, 0), row(-INF, -INF, -INF, -INF), row(0, INF, 0, 0)]
    )
    best = OPS.argmax_rows(logits)
    assert best.dtype == torch.int32
    assert best.tolist() == [1, 2, NO_TOKEN, NO_TOKEN, NO_TOKEN]


@given(ROWS)
def test_logprobs_match_the_formula(values):
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    normalizer = max(values) + math.log(math.fsum(math.exp(value - max(values)) for value in values))
    exact = [value - normalizer for value in values]
    for k in (0, 1, 3, 50):
        for token in range(len(values)):
            found = OPS.top_logprobs_row(row(*values), k, token)
            assert found.logprob == pytest.approx(exact[token], rel=1e-6, abs=1e-6)
            assert found.rank == ranked.index(token) + 1
            assert found.top_ids == ranked[:k]
            assert found.top_logprobs == pytest.approx([exact[t] for t in ranked[:k]], rel=1e-6, abs=1e-6)


def test_logprobs_of_a_large_row_match_torch():
    logits = torch.randn(49152, generator=torch.Generator().manual_seed(0)) * 4
    expected = torch.log_softmax(logits.double(), dim=0)
    found = OPS.top_logprobs_row(logits, 5, 77)
    assert found.logprob == pytest.approx(float(expected[77]), rel=1e-6)
    values, ids = expected.topk(5)
    assert found.top_ids == ids.tolist()
    assert found.top_logprobs == pytest.approx(values.tolist(), rel=1e-6)


@settings(max_examples=300)
@given(
    ROWS,
    st.sampled_from([0.05, 0.7, 1.0, 2.0, 50.0]),
    st.integers(-1, 13),
    st.sampled_from([1e-9, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_the_inverse_of_the_exact_cdf(values, temperature, top_k, top_p, min_p, u):
    probabilities = distribution(values, SamplingParams(temperature=temperature, top_k=max(top_k, 0), top_p=top_p, min_p=min_p))
    token = draw(OPS, row(*values), temperature, top_k, top_p, min_p, u)
    assert probabilities[token] > 0
    before = math.fsum(probabilities[:token])
    assert before - 1e-12 <= u <= before + probabilities[token] + 1e-12


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-8, 1e-5, 1e-4])
@pytest.mark.parametrize("top_p", [1e-300, 1e-4, 1.0])
@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_tiny_temperature_and_top_p_are_greedy(temperature, top_p, u):
    """K08-07."""
    assert draw(OPS, row(-3.4e38, 1, 3.4e38, -INF, 2), temperature, 0, top_p, 0.0, u) == 2
    assert draw(OPS, row(1.0, 9.0, 9.5, -INF), temperature, 0, top_p, 0.0, u) == 2


def test_ties_at_the_cut_keep_the_lower_id():
    logits = row(1, 2, 2, 2, 1)
    for u in (0.0, 0.4, 0.6, 1 - 2**-53):
        assert draw(OPS, logits, 1.0, 2, 1.0, 0.0, u) in (1, 2)
        assert draw(OPS, logits, 1.0, 1, 1.0, 0.0, u) == 1
        assert draw(OPS, logits, 1.0, 0, 0.2, 0.0, u) == 1


@pytest.mark.parametrize("values", [(math.nan, 1, 2), (1, math.nan, INF), (-INF, -INF, -INF), (0, INF, 0)])
def test_a_row_without_a_finite_maximum_draws_nothing(values):
    assert draw(OPS, row(*values), 1.0, 0, 0.9, 0.0, 0.5) == NO_TOKEN
    assert draw(OPS, row(*values), 0.0, 0, 0.9, 0.0, 0.5) == NO_TOKEN


def test_masked_tokens_are_never_drawn_at_either_end():
    logits = row(-INF, 0, -INF, 0, -INF)
    assert draw(OPS, logits, 1.0, 0, 1.0, 0.0, 0.0) == 1
    assert draw(OPS, logits, 1.0, 0, 1.0, 0.0, 1 - 2**-53) == 3
