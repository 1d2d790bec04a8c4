"""Beam search through the whole engine: transformers' answers, and the same bits whatever happens beside it."""

import asyncio
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from engine_models import EOS, VOCAB, byte_tokenizer, start, tiny_llama

from octavo import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from octavo.core.errors import InvalidRequestError
from octavo.core.params import MAX_LOGPROBS
from octavo.models.fetch import fetch_model

# What two float32 forwards may differ by: where candidates are closer, either order is right.
MARGIN = 1e-4
MAX_TOKENS = 10
PROMPTS = [[(11 * i + seed) % 500 + 4 for i in range(length)] for seed, length in ((1, 5), (2, 17), (3, 33), (4, 48))]
KERNELS = ("auto", "reference")
MODELS = ("llama", "gpt2")


@cache
def folder_of(name):
    """A tiny model's folder: rotary positions and grouped heads, or learned positions and biases."""
    if name == "llama":
        return tiny_llama()
    folder = Path(tempfile.mkdtemp(prefix="octavo-tiny-gpt2-"))
    torch.manual_seed(12)
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=512, bos_token_id=0, eos_token_id=EOS, initializer_range=0.3
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="</s>").save_pretrained(folder)
    return folder


@cache
def theirs(name):
    return transformers.AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()


class Margins(transformers.LogitsProcessor):
    """The least distance that any step had among the `count` best sums of logprobs and the next one."""

    def __init__(self, prompt_len, count):
        self.prompt_len, self.count = prompt_len, count
        self.least = float("inf")
        self.sums = {(): 0.0}

    def __call__(self, input_ids, scores):
        # In the first step all rows hold the prompt, so each beam counts once.
        rows = {tuple(ids[self.prompt_len :].tolist()): row for ids, row in zip(input_ids, scores.double(), strict=True)}
        grown = torch.stack([row + self.sums[tokens] for tokens, row in rows.items()])
        best = grown.flatten().topk(self.count + 1).values
        self.least = min(self.least, float((best[:-1] - best[1:]).min()))
        self.sums = {
            (*tokens, token): total for tokens, row in zip(rows, grown, strict=True) for token, total in enumerate(row.tolist())
        }
        return scores


def generated(model, prompt, width, penalty, early, stops, max_tokens):
    """transformers' (tokens up to the end, score), best first; None where its choice was closer than MARGIN anywhere."""
    margins = Margins(len(prompt), width + len(stops))
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=penalty,
            early_stopping=early,
            max_new_tokens=max_tokens,
            eos_token_id=list(stops),
            pad_token_id=stops[0],
            logits_processor=transformers.LogitsProcessorList([margins]),
            return_dict_in_generate=True,
            output_scores=True,
        )
    scores = out.sequences_scores.tolist()
    if margins.least < MARGIN or any(abs(a - b) < MARGIN for a, b in pairwise(scores)):
        return None
    rows = [row[len(prompt) :].tolist() for row in out.sequences]
    ends = [next((i + 1 for i, token in enumerate(row) if token in stops), len(row)) for row in rows]
    return [tuple(row[:end]) for row, end in zip(rows, ends, strict=True)], scores


@pytest.fixture(scope="module")
def llms():
    made = {
        (name, kernels): LLM(str(folder_of(name)), dtype="float32", threads=1, num_blocks=256, kernels=kernels)
        for name in MODELS
        for kernels in KERNELS
    }
    yield made
    for llm in made.values():
        llm.close()


@pytest.fixture(scope="module")
def stops(llms):
    """By model, ids that end beams at various lengths: those that free searches choose."""
    params = BeamSearchParams(beam_width=6, max_tokens=MAX_TOKENS, ignore_eos=True)
    found = {}
    for name in MODELS:
        outputs = llms[name, "auto"].beam_search(PROMPTS, params, use_tqdm=False)
        chosen = {sample.token_ids[place] for output in outputs for sample in output.outputs[:2] for place in (3, 6)}
        found[name] = tuple(sorted(chosen)[:4])
    return found


def told(output):
    return [
        (s.index, s.token_ids, s.text, s.finish_reason, s.stop_reason, s.cumulative_logprob, s.score, s.logprobs)
        for s in output.outputs
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (0.0, True), (2.0, "never")])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_it_answers_as_transformers(llms, stops, width, penalty, early, kernels, name):
    ends = stops[name]
    params = BeamSearchParams(
        beam_width=width, max_tokens=MAX_TOKENS, length_penalty=penalty, early_stopping=early, stop_token_ids=ends, ignore_eos=True
    )
    outputs = llms[name, kernels].beam_search(PROMPTS, params, use_tqdm=False)
    compared = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = generated(theirs(name), prompt, width, penalty, early, ends, MAX_TOKENS)
        if expected is None:
            continue
        compared += 1
        assert [sample.token_ids for sample in output.outputs] == expected[0]
        assert [sample.score for sample in output.outputs] == pytest.approx(expected[1], abs=MARGIN)
        for sample in output.outputs:
            assert sample.score == pytest.approx(sample.cumulative_logprob / len(sample.token_ids) ** penalty, rel=1e-5)
            ended = sample.token_ids[-1] in ends
            assert (sample.finish_reason, sample.stop_reason) == (("stop", sample.token_ids[-1]) if ended else ("length", None))
    assert compared >= 2
    llms[name, kernels].check()


def test_the_real_model_answers_as_transformers():
    path = fetch_model("smollm2-135m")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with LLM("smollm2-135m", dtype="float32", num_blocks=64, max_model_len=256) as llm:
        [output] = llm.beam_search("The capital of France is", BeamSearchParams(beam_width=4, max_tokens=12), use_tqdm=False)
        eos = tuple(llm.inputs.limits.eos_token_ids)
    expected = generated(model, list(output.prompt_token_ids), 4, 1.0, False, eos, 12)
    assert expected is not None, "the prompt is to be one whose candidates are clear of each other"
    assert [sample.token_ids for sample in output.outputs] == expected[0]
    assert [sample.score for sample in output.outputs] == pytest.approx(expected[1], abs=MARGIN)


PARAMS = [
    BeamSearchParams(beam_width=width, n=n, max_tokens=tokens, length_penalty=penalty, ignore_eos=True)
    for width, n, tokens, penalty in ((4, None, 14, 1.0), (2, 1, 30, 0.5), (6, 3, 20, 2.0), (3, 2, 24, 0.0))
]


@pytest.fixture(scope="module")
def alone():
    """Each search by itself on an engine that keeps nothing."""
    with start(enable_prefix_caching=False) as llm:
        return [told(llm.beam_search(prompt, params, use_tqdm=False)[0]) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_prefix_caching": False},
        {"prefix_index": "radix", "block_size": 32},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 14},  # what the largest of them may take
        {"num_blocks": 14, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_it_gives_the_same_bits_as_alone(alone, settings):
    with start(**settings) as llm:
        for _ in range(2):  # the second time, memory has it
            outputs = llm.beam_search(PROMPTS, PARAMS, use_tqdm=False)
            assert [told(output) for output in outputs] == alone
            llm.check()
        stats = llm.stats()
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
        if "num_blocks" in settings:
            assert stats.preemptions > 0
        else:
            assert (stats.prompt_tokens_cached > 0) == settings.get("enable_prefix_caching", True)


def run_mixed(llm, searches, draws):
    """Beam searches and plain requests in one engine: what each gives."""
    sampled = SamplingParams(temperature=1.0, n=2, seed=9, max_tokens=25, logprobs=1, ignore_eos=True)
    requests = llm.inputs.requests(searches, PARAMS, [{}] * len(searches), kind=BeamSearchParams)
    requests += llm.inputs.requests(draws, [sampled] * len(draws), [{}] * len(draws))
    outputs = llm._run(requests, use_tqdm=False)
    llm.check()
    return [told(output) for output in outputs]


def test_neighbours_change_nothing_and_preemption_neither(alone):
    draws = [[(3 * i + k) % 500 + 4 for i in range(20)] for k in range(4)]
    with start() as llm:
        expected = run_mixed(llm, PROMPTS, draws)
    assert expected[: len(PROMPTS)] == alone
    for settings in ({"num_blocks": 16}, {"num_blocks": 16, "enable_prefix_caching": False}):
        with start(**settings) as llm:
            assert run_mixed(llm, PROMPTS, draws) == expected
            assert llm.stats().preemptions > 0


def test_beams_share_what_they_have_in_common():
    with start() as llm:
        seen = []
        [request] = llm.inputs.requests([PROMPTS[3]], [PARAMS[2]], [{}], kind=BeamSearchParams)
        llm.engine.add_request(request)
        while llm.engine.has_work:
            llm.engine.step()
            llm.check()
            seen.append(llm.stats())
        assert max(stats.running for stats in seen) == 6
        assert max(stats.blocks_saved for stats in seen) >= 5 * 3  # the three blocks of the prompt, five times over
        assert max(stats.blocks_leased for stats in seen) <= 3 + 6 * 2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"beam_width": 4, "stop_token_ids": [VOCAB]}, r"stop_token_ids names token id 512; this model's ids are 0 to 511"),
        ({"beam_width": 16, "stop_token_ids": list(range(500))}, r"beam_width=16 is above the 12 ids .* of which 500 end it"),
        ({"beam_width": 4, "max_tokens": 5000}, r"max_tokens=5000 .* max_model_len is 2048"),
        ({"beam_width": 64, "max_tokens": 200}, r"64 beams of 5 prompt and 200 new tokens take up to 832 blocks .* has 256"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(llms, params, words):
    llm = llms["llama", "auto"]
    with pytest.raises(InvalidRequestError, match=f"prompt 1: .*{words}") as caught:
        llm.beam_search([PROMPTS[0]] * 2, [PARAMS[0], BeamSearchParams(**params)])
    assert caught.value.index == 1
    assert not llm.engine.has_work


def test_more_candidates_than_logprobs_are_made_are_refused_with_the_numbers(llms):
    inputs = llms["llama", "auto"].inputs
    limits = inputs.limits
    wide = type(inputs)(inputs.tokenizer, type(limits)(5000, limits.max_model_len, 10**6, limits.eos_token_ids, "a pool"), 0)
    words = rf"beam_width=100 and 1001 ids that end a beam take the 1101 likeliest tokens of each, and at most {MAX_LOGPROBS}"
    with pytest.raises(InvalidRequestError, match=words):
        wide.request([5], BeamSearchParams(beam_width=100, stop_token_ids=list(range(2, 1002))), kind=BeamSearchParams)
    fits = wide.request([5], BeamSearchParams(beam_width=23, stop_token_ids=list(range(2, 1002))), kind=BeamSearchParams)
    assert (fits.params.logprobs, fits.params.n, fits.stop_token_ids) == (MAX_LOGPROBS, 23, frozenset({EOS, *range(2, 1002)}))


def test_each_call_takes_its_own_kind_of_parameters(llms):
    llm = llms["llama", "auto"]
    with pytest.raises(InvalidRequestError, match="params must be of BeamSearchParams"):
        llm.beam_search([PROMPTS[0]], SamplingParams())
    with pytest.raises(InvalidRequestError, match="sampling_params must be of SamplingParams"):
        llm.generate([PROMPTS[0]], PARAMS[0])


def test_a_search_that_fails_answers_for_every_result_that_was_wanted():
    with start() as llm:
        runner = llm.engine.runner

        class Fails:
            def __getattr__(self, name):
                return getattr(runner, name)

            def execute(self, plan):
                if plan.step == 5:
                    raise MemoryError("no workspace of 1234 bytes")
                return runner.execute(plan)

        llm.engine.runner = Fails()
        [output] = llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=3, n=2, ignore_eos=True), use_tqdm=False)
        assert [(sample.finish_reason, sample.token_ids) for sample in output.outputs] == [("error", ())] * 2
        assert "1234 bytes" in (output.outputs[0].error or "")
        llm.check()
        assert llm.stats().blocks_leased == 0


def test_the_asynchronous_front_searches_too(alone):
    async def main():
        async with AsyncLLM(str(tiny_llama()), dtype="float32", threads=1, num_blocks=256) as llm:
            searches = (llm.beam_search(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True))
            assert [told(output) for output in await asyncio.gather(*searches)] == alone
            for wrong in (llm.beam_search(PROMPTS[0], SamplingParams()), llm.beam_search([], PARAMS[0])):
                with pytest.raises(InvalidRequestError):
                    await wrong
            with pytest.raises(InvalidRequestError, match="64 beams of 5 prompt and 200 new tokens"):
                await llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=64, max_tokens=200))
            left = asyncio.create_task(llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=4, max_tokens=900, ignore_eos=True)))
            await asyncio.sleep(0.1)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            stats = await llm.stats()
            assert stats.running == stats.waiting == 0
            await llm.check()

    asyncio.run(main())
