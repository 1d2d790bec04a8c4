"""The sampler: its order of steps, its memory, and the independence of rows."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_oracle import distribution, edited_logits, start

from octavo.kernels.reference_sampling import ReferenceSamplingOps
from octavo.sampling import Sampler

VOCAB = 11


class CountingOps(ReferenceSamplingOps):
    """Counts the calls, to prove which path was taken."""

    def __init__(self):
        self.calls = Counter()

    def argmax_rows(self, logits):
        self.calls["argmax_rows"] += 1
        return super().argmax_rows(logits)

    def draw_rows(self, rows, draws):
        self.calls[f"draw {len(rows)} rows"] += 1
        return super().draw_rows(rows, draws)


def advance(chooser, seq_ids, logits):
    """One step that succeeds: choose, then record."""
    result = chooser.sample(seq_ids, logits)
    chooser.record(result.samples)
    return result


def sampler(*starts, ops=None, vocab=VOCAB):
    made = Sampler(vocab, ops or ReferenceSamplingOps())
    for begin in starts:
        made.start(begin)
    return made


def random_logits(rows, seed=0, vocab=VOCAB):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def test_a_plain_greedy_batch_is_one_argmax():
    ops = CountingOps()
    batch = sampler(*[start(seq_id=i, temperature=0) for i in range(5)], ops=ops)
    logits = random_logits(5)
    logits[2] = 1.0
    result = advance(batch, range(5), logits)
    assert [result.samples[i].token_id for i in range(5)] == [int(torch.argmax(r)) if i != 2 else 0 for i, r in enumerate(logits)]
    assert ops.calls == {"argmax_rows": 1}


def test_rows_without_edits_are_drawn_together():
    ops = CountingOps()
    begins = [start(seq_id=i, temperature=1.0, seed=i) for i in range(4)]
    begins += [start(seq_id=4, temperature=1.0, seed=4, presence_penalty=1.0), start(seq_id=5, temperature=0)]
    logits = random_logits(6)
    result = advance(sampler(*begins, ops=ops), range(6), logits)
    assert ops.calls == {"argmax_rows": 1, "draw 4 rows": 1, "draw 1 rows": 1}
    for i, begin in enumerate(begins):
        assert advance(sampler(begin), [i], logits[i : i + 1]).samples[i] == result.samples[i]


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 3.0]),
        "top_k": st.integers(0, 5),
        "top_p": st.sampled_from([0.3, 0.8, 1.0]),
        "min_p": st.sampled_from([0.0, 0.2]),
        "presence_penalty": st.sampled_from([-1.5, 0.0, 1.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.7]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "min_tokens": st.integers(0, 4),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 0.5, 4.0]), max_size=3),
        "allowed_token_ids": st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=8),
        "logprobs": st.integers(0, 3),
    },
)
STARTS = st.builds(
    lambda params, tokens, stop, bad, seed: start(
        tokens=tokens, prompt_len=max(1, len(tokens) - 2), stop=stop, bad=bad, seed=seed, max_tokens=9, **params
    ),
    PARAMS,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3).map(tuple), max_size=3),
    st.integers(0, 2**64 - 1),
)


@settings(max_examples=150, deadline=None)
@given(STARTS, st.integers(0, 1000))
def test_each_step_follows_the_oracle(begin, seed):
    """Masks, bias and penalties change as the output grows; the token drawn has mass in the exact distribution."""
    chooser = sampler(begin)
    output = list(begin.tokens[begin.prompt_len :])
    for step in range(5):
        logits = random_logits(1, seed + step)
        expected = edited_logits(logits[0].tolist(), begin, output)
        result = advance(chooser, [0], logits)
        if max(expected) == -math.inf:
            assert "mask the whole vocabulary" in result.failed[0] and not result.samples
            return
        token = result.samples[0].token_id
        if begin.params.greedy:
            assert token == expected.index(max(expected))
        else:
            assert distribution(expected, begin.params)[token] > 0
        if begin.params.logprobs is not None:
            raw = torch.log_softmax(logits[0].double(), 0)
            assert result.samples[0].logprobs.logprob == pytest.approx(float(raw[token]), rel=1e-5, abs=1e-6)
            assert len(result.samples[0].logprobs.top) == begin.params.logprobs
        output.append(token)


@settings(max_examples=40, deadline=None)
@given(st.lists(STARTS, min_size=2, max_size=6), st.integers(0, 1000))
def test_a_row_is_the_same_alone_and_in_a_batch(begins, seed):
    begins = [
        start(
            seq_id=i, tokens=b.tokens, prompt_len=b.prompt_len, stop=b.stop_token_ids, bad=b.bad_words_ids, seed=b.seed,
            **{name: getattr(b.params, name) for name in ("temperature", "top_k", "top_p", "min_p", "logprobs", "repetition_penalty")},
        )
        for i, b in enumerate(begins)
    ]  # fmt: skip
    together = sampler(*begins)
    alone = [sampler(begin) for begin in begins]
    for step in range(3):
        logits = random_logits(len(begins), seed + step)
        order = list(range(len(begins)))[:: 1 if step % 2 else -1]
        batch = advance(together, order, logits[order])
        for i, single in enumerate(alone):
            result = advance(single, [i], logits[i : i + 1])
            assert batch.samples.get(i) == result.samples.get(i)
            assert batch.failed.get(i) == result.failed.get(i)


def test_a_full_vocabulary_row_is_the_same_alone_and_in_a_batch():
    begins = [start(seq_id=i, temperature=1.0, top_p=0.9, top_k=50 * i, seed=i, logprobs=5, presence_penalty=0.1) for i in range(7)]
    logits = random_logits(7, vocab=49152)
    together = sampler(*begins, vocab=49152).sample(range(7), logits)
    for begin in begins:
        i = begin.seq_id
        alone = sampler(begin, vocab=49152).sample([i], logits[i : i + 1].clone())
        assert alone.samples[i] == together.samples[i]


def test_a_resumed_sequence_continues_its_draws_and_counts():
    """K06-02: the draw depends on the output position, whatever happened in between."""
    settings_ = {"temperature": 1.5, "frequency_penalty": 0.8, "repetition_penalty": 1.2, "seed": 7}
    logits = random_logits(20, 3)
    whole = sampler(start(tokens=(4, 5), **settings_))
    tokens = [advance(whole, [0], logits[i : i + 1]).samples[0].token_id for i in range(20)]
    for cut in (1, 7, 19):
        resumed = sampler(start(seq_id=9, tokens=(4, 5, *tokens[:cut]), prompt_len=2, **settings_))
        assert [advance(resumed, [9], logits[i : i + 1]).samples[9].token_id for i in range(cut, 20)] == tokens[cut:]


def test_a_step_can_be_repeated_until_it_is_recorded():
    logits = random_logits(30, 4)
    params = {"temperature": 1.5, "frequency_penalty": 0.8}
    once, again = sampler(start(**params)), sampler(start(**params))
    for i in range(30):
        again.sample([0], logits[i : i + 1])
        tokens = [chooser.sample([0], logits[i : i + 1]) for chooser in (once, again)]
        assert tokens[0] == tokens[1]
        for chooser in (once, again):
            chooser.record(tokens[0].samples)


def test_samples_of_one_request_draw_differently():
    draws = []
    for index in range(2):
        chooser = sampler(start(sample_index=index, seed=3))
        draws.append([advance(chooser, [0], torch.zeros(1, VOCAB)).samples[0].token_id for _ in range(30)])
    assert draws[0] != draws[1]


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"temperature": 0, "logit_bias": {1: 2.0}}, {"logprobs": 2}])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_row_fails_alone(params, poison):
    batch = sampler(*[start(seq_id=i, **params) for i in range(3)])
    logits = random_logits(3)
    clean = sampler(*[start(seq_id=i, **params) for i in range(3)]).sample([0, 1, 2], logits)
    logits = logits.clone()
    logits[1, 4] = poison
    result = advance(batch, [0, 1, 2], logits)
    assert set(result.failed) == {1} and "NaN" in result.failed[1]
    assert result.samples == {0: clean.samples[0], 2: clean.samples[2]}


def test_min_tokens_keeps_stop_ids_away_and_then_lets_them_come():
    chooser = sampler(start(temperature=0, min_tokens=2, max_tokens=5, stop=(3, 10)))
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 10], logits[0, 6] = 9.0, 8.0, 1.0
    assert [advance(chooser, [0], logits).samples[0].token_id for _ in range(3)] == [6, 6, 3]


def test_bad_words_of_several_tokens_stop_at_the_last():
    chooser = sampler(start(temperature=0, bad=((5, 6), (7,), (5, 8, 9))))
    logits = torch.zeros(4, VOCAB)
    logits[0, 7], logits[0, 5] = 9.0, 8.0
    logits[1, 6], logits[1, 8] = 9.0, 8.0
    logits[2, 9], logits[2, 2] = 9.0, 8.0
    logits[3, 6] = 9.0
    assert [advance(chooser, [0], logits[i : i + 1]).samples[0].token_id for i in range(4)] == [5, 8, 2, 6]


def test_logprobs_are_raw_and_the_logits_stay_as_they_were():
    logits = random_logits(1)
    before = logits.clone()
    result = sampler(start(temperature=0.5, logprobs=2, logit_bias={4: 100.0}, seed=1)).sample([0], logits)
    sample = result.samples[0]
    assert sample.token_id == 4
    assert sample.logprobs.logprob == pytest.approx(float(torch.log_softmax(logits[0].double(), 0)[4]), rel=1e-6)
    assert sample.logprobs.token_id == 4 and 4 not in dict(sample.logprobs.top)
    assert torch.equal(logits, before)


def test_prompt_logprobs():
    logits = random_logits(3)
    raw = torch.log_softmax(logits.double(), 1)
    found = sampler().prompt_logprobs(logits, [1, 0, 10], 2)
    for i, token in enumerate([1, 0, 10]):
        assert found[i].token_id == token
        assert found[i].logprob == pytest.approx(float(raw[i, token]), rel=1e-6)
        assert [t for t, _ in found[i].top] == raw[i].topk(2).indices.tolist()
        assert found[i].rank == 1 + int((raw[i] > raw[i, token]).sum())


def test_release_is_idempotent_and_a_start_replaces():
    chooser = sampler(start(temperature=0, min_tokens=1, stop=(0,)))
    logits = torch.zeros(1, VOCAB)
    assert advance(chooser, [0], logits).samples[0].token_id == 1
    chooser.start(start(temperature=0))
    assert advance(chooser, [0], logits).samples[0].token_id == 0
    chooser.release(0)
    chooser.release(0)
    with pytest.raises(KeyError):
        advance(chooser, [0], logits)


# Upper 0.1 % points of chi-square by degrees of freedom.
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46, 7: 24.32, 8: 26.12, 9: 27.88, 10: 29.59}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 4},
        {"temperature": 1.7, "top_p": 0.8},
        {"temperature": 2.5, "min_p": 0.15, "top_p": 0.95},
        {"temperature": 1.0, "logit_bias": {2: 1.0}, "allowed_token_ids": [0, 2, 5, 7, 9]},
    ],
)
def test_draws_follow_the_exact_distribution(params):
    draws = 6000
    logits = random_logits(1, 5)
    begin = start(seed=20240601, **params)
    chooser = sampler(begin)
    counts = Counter(advance(chooser, [0], logits).samples[0].token_id for _ in range(draws))
    exact = distribution(edited_logits(logits[0].tolist(), begin, []), begin.params)
    kept = [token for token, probability in enumerate(exact) if probability > 0]
    assert set(counts) <= set(kept)
    statistic = sum((counts[token] - draws * exact[token]) ** 2 / (draws * exact[token]) for token in kept)
    assert statistic < CHI_SQUARE_999[len(kept) - 1]
