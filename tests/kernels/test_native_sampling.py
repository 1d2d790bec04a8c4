"""The compiled sampler operations against the reference ones, which define them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_ops import PATHS

from octavo.core.errors import ConfigError, InvariantError
from octavo.kernels.choice import make_sampling_ops
from octavo.kernels.native import available_paths
from octavo.kernels.native_sampling import NativeSamplingOps
from octavo.kernels.reference_sampling import ReferenceSamplingOps
from octavo.kernels.sampling_ops import NO_TOKEN, Draw

REFERENCE = ReferenceSamplingOps()
OPS = {path: NativeSamplingOps(2, path) for path in PATHS}
INF = math.inf
JUST_BELOW_1 = 1 - 2**-53


def row(*values):
    return torch.tensor(values, dtype=torch.float32)


def draw(ops, logits, *how):
    (token,) = ops.draw_rows([logits], [Draw(*how)])
    return token


# Few distinct values, so that ties are common; some masked; longer than a stretch of 64 now and then.
ROWS = st.lists(st.sampled_from([-INF, -30.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0, 80.0]), min_size=1, max_size=150).filter(
    lambda values: max(values) > -INF
)


def large(seed, scale=3.0, n=49152):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("path", PATHS)
def test_argmax_takes_the_lowest_id_and_marks_unusable_rows(path):
    rows = [
        row(1, 5, 5, 0),
        row(-INF, -INF, -3, -INF),
        row(1, math.nan, 9, 0),
        row(*[-INF] * 4),
        row(0, INF, 0, 0),
        row(-0.0, 0.0, -1, 0),
    ]
    assert OPS[path].argmax_rows(torch.stack(rows)).tolist() == [1, 2, NO_TOKEN, NO_TOKEN, NO_TOKEN, 0]
    for n in (1, 15, 16, 17, 63, 64, 65, 1000):
        logits = torch.stack([large(seed, n=n) for seed in range(5)])
        logits[1, n - 1] = logits[1, n // 2] = 100.0
        logits[2, n - 1] = math.nan
        best = OPS[path].argmax_rows(logits)
        assert best.dtype == torch.int32
        assert best.tolist() == REFERENCE.argmax_rows(logits).tolist()


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(0, 160), st.data())
def test_logprobs_are_the_references(path, values, k, data):
    logits, token = row(*values), data.draw(st.integers(0, len(values) - 1))
    found, expected = OPS[path].top_logprobs_row(logits, k, token), REFERENCE.top_logprobs_row(logits, k, token)
    assert (found.rank, found.top_ids) == (expected.rank, expected.top_ids)
    assert found.top_logprobs == pytest.approx(expected.top_logprobs, rel=1e-6, abs=1e-6)
    assert found.logprob == pytest.approx(expected.logprob, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_logprobs_of_large_rows_are_the_references(path):
    for seed, k in ((0, 5), (1, 1024), (2, 0)):
        logits = large(seed).round(decimals=1)  # many ties
        found, expected = OPS[path].top_logprobs_row(logits, k, 4321), REFERENCE.top_logprobs_row(logits, k, 4321)
        assert (found.rank, found.top_ids) == (expected.rank, expected.top_ids)
        assert found.logprob == pytest.approx(expected.logprob, rel=3e-7)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None)
@given(
    ROWS,
    st.sampled_from([0.05, 0.7, 1.0, 2.0, 50.0]),
    st.integers(-1, 160),
    st.sampled_from([1e-9, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_draws_are_the_references(path, values, temperature, top_k, top_p, min_p, u):
    logits = row(*values)
    found = draw(OPS[path], logits, temperature, top_k, top_p, min_p, u)
    # Float32 weights may move the target past a neighbour, or a top_p that ends on an exact share by one token: each near u is right.
    right = {
        draw(REFERENCE, logits, temperature, top_k, min(1.0, top_p * p), min_p, min(JUST_BELOW_1, max(0.0, u + shift)))
        for shift in (-1e-6, 0, 1e-6)
        for p in (1 - 1e-6, 1, 1 + 1e-6)
    }
    assert found in right


@pytest.mark.parametrize("path", PATHS)
def test_draws_from_large_rows_are_the_references(path):
    for seed in range(12):
        logits = large(seed, scale=(0.1, 1.0, 5.0)[seed % 3])
        logits[::7] = -INF
        u = (seed * 0.6180339887) % 1
        for top_k, top_p, min_p in ((0, 1.0, 0.0), (50, 1.0, 0.0), (0, 0.9, 0.0), (5000, 0.8, 0.01), (0, 1 - 1e-9, 0.0)):
            found = draw(OPS[path], logits, 0.8, top_k, top_p, min_p, u)
            near = {
                draw(REFERENCE, logits, 0.8, top_k, top_p, min_p, min(max(u + shift, 0), JUST_BELOW_1)) for shift in (-1e-6, 0, 1e-6)
            }
            assert found in near, (seed, top_k, top_p)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-8, 1e-5, 1e-4])
@pytest.mark.parametrize("top_p", [1e-300, 1e-4, 1.0])
def test_tiny_temperature_and_top_p_are_greedy(path, temperature, top_p):
    """K08-07."""
    for u in (0.0, 0.5, JUST_BELOW_1):
        assert draw(OPS[path], row(-3.4e38, 1, 3.4e38, -INF, 2), temperature, 0, top_p, 0.0, u) == 2
        assert draw(OPS[path], row(1.0, 9.0, 9.5, -INF), temperature, 0, top_p, 0.0, u) == 2


@pytest.mark.parametrize("path", PATHS)
def test_a_masked_token_is_never_drawn(path):
    logits = torch.full((200,), -INF)
    logits[[3, 150]] = row(0.0, -80.0)
    for u in (0.0, 0.5, JUST_BELOW_1):
        assert draw(OPS[path], logits, 1.0, 0, 1.0, 0.0, u) in (3, 150)
    logits[[3, 150]] = -INF
    assert draw(OPS[path], logits, 1.0, 0, 1.0, 0.0, 0.5) == NO_TOKEN
    logits[0] = math.nan
    assert draw(OPS[path], logits, 1.0, 0, 1.0, 0.0, 0.5) == NO_TOKEN


def test_rows_together_are_rows_alone():
    ops, wide = NativeSamplingOps(3), NativeSamplingOps(1)
    rows = [large(seed, n=5000) for seed in range(9)]
    temperature = [0.0, 0.5, 1.0, 2.0, 0.7, 1.0, 1.0, 9.0, 0.1]
    top_k, top_p = [0, 1, 40, 0, -1, 3, 0, 0, 100], [1.0, 1.0, 0.9, 0.5, 1.0, 0.99, 0.1, 0.95, 1.0]
    u = [i / 9 for i in range(9)]
    draws = [Draw(*one) for one in zip(temperature, top_k, top_p, [0.0] * 9, u, strict=True)]
    assert ops.draw_rows(rows, draws) == [draw(wide, *one) for one in zip(rows, temperature, top_k, top_p, [0.0] * 9, u, strict=True)]
    assert ops.draw_rows([], []) == []


def test_wrong_rows_and_paths_are_refused():
    ops = OPS[PATHS[0]]
    for bad in (torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2], torch.zeros(1, 4)):
        with pytest.raises(InvariantError, match="contiguous float32"):
            draw(ops, bad, 1.0, 0, 1.0, 0.0, 0.5)
    with pytest.raises(InvariantError, match="token 4 isn't in a row of 4"):
        ops.top_logprobs_row(torch.zeros(4), 1, 4)
    with pytest.raises(ConfigError, match="sse9"):
        NativeSamplingOps(1, "sse9")


@pytest.mark.parametrize("kernels", ["auto", *PATHS])
def test_the_sampler_takes_the_executors_path(kernels):
    ops = make_sampling_ops(kernels, 1)
    assert isinstance(ops, NativeSamplingOps) and ops.name == (available_paths()[0] if kernels == "auto" else kernels)
    assert isinstance(make_sampling_ops("reference", 1), ReferenceSamplingOps)
