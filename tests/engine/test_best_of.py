"""`best_of`: more samples are drawn than returned; the best by the sum of their logprobs come back, all at once."""

import asyncio
from dataclasses import replace

import pytest
from engine_models import start, tiny_llama

from octavo import AsyncLLM, SamplingParams
from octavo.core.errors import InvalidRequestError

PROMPT = [(7 * i) % 500 for i in range(37)]
DRAWN = SamplingParams(n=6, temperature=1.2, seed=5, max_tokens=20, logprobs=0, stop_token_ids=list(range(4, 30)))


@pytest.fixture(scope="module")
def llm():
    with start() as llm:
        yield llm


def chosen_by_hand(llm, count):
    """The best `count` of all that are drawn: (tokens, text, cause of the end, sum of logprobs), the best first."""
    samples = llm.generate([PROMPT], DRAWN, use_tqdm=False)[0].outputs
    sums = [sum(entry.logprob for entry in sample.logprobs) for sample in samples]
    order = sorted(range(len(samples)), key=lambda i: (-sums[i], i))[:count]
    return [(samples[i].token_ids, samples[i].text, samples[i].finish_reason, samples[i].stop_reason, sums[i]) for i in order]


def told(outputs):
    return [(one.token_ids, one.text, one.finish_reason, one.stop_reason, one.cumulative_logprob) for one in outputs]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_it_is_what_one_would_choose_by_hand(llm, n):
    expected = chosen_by_hand(llm, n)
    output = llm.generate([PROMPT], replace(DRAWN, n=n, best_of=6, logprobs=None), use_tqdm=False)[0]
    assert told(output.outputs) == expected
    assert [one.index for one in output.outputs] == list(range(n))
    assert all(one.logprobs is None for one in output.outputs)
    assert output.finished
    llm.check()


def test_the_case_is_worth_its_name(llm):
    """Samples end at different lengths and for both causes, and the first drawn isn't the best."""
    everything = chosen_by_hand(llm, 6)
    assert len({len(tokens) for tokens, *_ in everything}) >= 3
    assert {reason for _, _, reason, *_ in everything} == {"stop", "length"}
    assert everything[0][0] != llm.generate([PROMPT], replace(DRAWN, n=1), use_tqdm=False)[0].outputs[0].token_ids


def test_logprobs_come_when_they_are_asked_for(llm):
    [best] = llm.generate([PROMPT], replace(DRAWN, n=1, best_of=6, logprobs=3), use_tqdm=False)[0].outputs
    assert [entry.token_id for entry in best.logprobs] == list(best.token_ids)
    assert all(len(entry.top) == 3 for entry in best.logprobs)
    assert sum(entry.logprob for entry in best.logprobs) == best.cumulative_logprob


def test_as_many_as_returned_is_plain_sampling(llm):
    plain = llm.generate([PROMPT], replace(DRAWN, logprobs=None), use_tqdm=False)[0].outputs
    assert llm.generate([PROMPT], replace(DRAWN, best_of=6, logprobs=None), use_tqdm=False)[0].outputs == plain
    assert all(one.cumulative_logprob is None for one in plain)


def test_the_samples_share_their_prompt(llm):
    before = llm.stats()
    prompt = [9, *PROMPT]
    llm.generate([prompt], replace(DRAWN, n=1, best_of=6), use_tqdm=False)
    after = llm.stats()
    assert after.prompt_tokens - before.prompt_tokens == len(prompt)
    assert after.tokens_forked - before.tokens_forked == 5 * len(prompt)


def test_too_few_to_choose_from_is_refused():
    with pytest.raises(InvalidRequestError, match="best_of=2 is below n=3"):
        SamplingParams(n=3, best_of=2)


def test_a_stream_gives_everything_with_its_one_delta(llm):
    expected = chosen_by_hand(llm, 2)

    async def main():
        async with AsyncLLM(str(tiny_llama()), dtype="float32", threads=1, num_blocks=256) as front:
            return [delta async for delta in front.generate(PROMPT, replace(DRAWN, n=2, best_of=6, logprobs=None))]

    [delta] = asyncio.run(main())
    assert delta.finished
    assert told(delta.outputs) == expected
