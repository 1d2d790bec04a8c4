"""What the prefix cache saves, in tokens that were not computed, and what it says about it."""

import random

import pytest
import torch
from engine_models import VOCAB, start
from same_bits import enqueue

from octavo import SamplingParams
from octavo.core.outputs import CacheReport
from octavo.engine import build
from octavo.runner.arena import Arena

FEW = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
both_indexes = pytest.mark.parametrize("prefix_index", ["hash", "radix"])


def text(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(4, VOCAB) for _ in range(length)]


def begin(**settings):
    """An engine in which every head of a block is worth its copy, on whatever machine."""
    llm = start(**settings)
    llm.engine.scheduler._copy_seconds = 0.0
    return llm


def ask(llm, prompts, params=FEW, **options):
    outputs = llm.generate(prompts, params, use_tqdm=False, **options)
    llm.check()
    return outputs


def rows(llm, prompt, params=FEW, **options):
    """Rows that were computed for one request: of its prompt, its first token's included."""
    before = llm.stats().tokens_computed
    [output] = ask(llm, [prompt], params, **options)
    return llm.stats().tokens_computed - before - len(output.outputs[0].token_ids) + 1, output


@both_indexes
def test_a_session_computes_what_is_new(prefix_index):
    """Ten turns of 200 new and 50 generated tokens, all history sent again: less than a block more than what is new, per turn."""
    with begin(prefix_index=prefix_index, num_blocks=400, max_positions=4096) as llm:
        history, computed = [], 0
        for turn in range(10):
            history += text(200, turn)
            count, output = rows(llm, history, SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
            assert count == len(history) - output.num_cached_tokens
            computed += count
            history += output.outputs[0].token_ids
        assert computed <= 10 * 200 + 10 * 17
        assert computed == 10 * 200 + 9  # of each answer, the last token is the first thing that is missing
        assert llm.stats().prompt_tokens == sum(200 * n + 50 * (n - 1) for n in range(1, 11))
        assert llm.stats().hit_rate == 1 - computed / llm.stats().prompt_tokens


@both_indexes
@pytest.mark.parametrize("max_num_batched_tokens", [256, 2048])
def test_a_long_prefix_that_arrives_32_times_at_once_is_computed_once(prefix_index, max_num_batched_tokens):
    shared, own = text(1024, 1), 24
    with begin(prefix_index=prefix_index, num_blocks=400, max_num_batched_tokens=max_num_batched_tokens) as llm:
        outputs = ask(llm, [[*shared, 4 + n, *text(own - 1, n)] for n in range(32)])
        assert [output.num_cached_tokens for output in outputs] == [0] + [1024] * 31
        assert llm.stats().tokens_computed == 1024 + 32 * (own + FEW.max_tokens - 1)
        assert llm.stats().blocks_saved == 0 and llm.stats().sharing_mean > 0


@both_indexes
@pytest.mark.parametrize("length", [64, 70])
def test_a_full_hit_computes_one_token_and_writes_nothing(monkeypatch, prefix_index, length):
    arenas = []

    def arena(*args):
        arenas.append(Arena(*args, poison=True))
        return arenas[-1]

    monkeypatch.setattr(build, "Arena", arena)
    prompt, one = text(length, 2), SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    with begin(prefix_index=prefix_index) as llm:
        assert rows(llm, prompt, one)[0] == length
        written = arenas[0].bytes.clone()
        blocks = llm.stats().blocks_cached
        for _ in range(3):
            count, output = rows(llm, prompt, one)
            assert (count, output.cache) == (1, CacheReport(num_tokens=length - 1))
        assert llm.stats().blocks_cached == blocks
        assert torch.equal(arenas[0].bytes, written)


def test_an_output_tells_where_its_prefix_came_from_and_why_not_more():
    scored = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=1)
    prompt = text(70, 3)
    with begin(num_blocks=12) as llm:

        def report(*args, **options):
            [output] = ask(llm, *args, **options)
            assert output.num_cached_tokens == output.cache.num_tokens
            return output.cache

        assert report([prompt]) == CacheReport(miss="no match")
        assert report([prompt]) == CacheReport(num_tokens=69)
        assert report([[*prompt, 5, 6, 7]]) == CacheReport(num_tokens=70, miss="no match")
        assert report([prompt], tenant="another") == CacheReport(miss="no match")
        assert report([prompt], cache_salt="salt") == CacheReport(miss="no match")
        assert report([prompt], scored) == CacheReport(miss="prompt logprobs asked")
        ask(llm, [text(180, 4)])
        assert report([prompt]) == CacheReport(miss="evicted")
        llm.engine.scheduler._copy_seconds = 1.0
        assert report([prompt]) == CacheReport(num_tokens=64, miss="below the copy's worth")
        llm.engine.scheduler._copy_seconds = 0.0
        [forked] = ask(llm, [prompt], SamplingParams(n=4, seed=1, max_tokens=2, ignore_eos=True))
        assert forked.cache == CacheReport(num_tokens=69)  # of the first sample: the others fork it


def test_another_template_is_another_key_and_says_so():
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with begin() as llm:
        messages = [{"role": "user", "content": "q" * 100}]
        for _ in range(2):
            [output] = llm.chat(messages, FEW, use_tqdm=False, chat_template=template)
        assert output.num_cached_tokens == len(output.prompt_token_ids) - 1
        [output] = ask(llm, [list(output.prompt_token_ids)])
        assert output.cache == CacheReport(miss="key differs", miss_field="chat_template")


def test_k08_10_what_is_read_again_after_a_preemption_is_no_hit():
    with begin(num_blocks=64) as llm:
        prompt = text(100, 5)
        enqueue(llm, [(prompt, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))])
        reports = []
        for step in range(100):
            if step in (5, 20):
                llm.engine.scheduler._preempt_youngest()
            reports += [output.cache for output in llm.engine.step()]
            if not llm.engine.has_work:
                break
        stats = llm.stats()
        assert stats.preemptions == 2 and stats.tokens_cached > 200  # it was all there, and read
        assert set(reports) == {CacheReport(miss="no match")}
        assert (stats.prompt_tokens, stats.prompt_tokens_cached, stats.hit_rate) == (100, 0, 0.0)


def test_the_hit_rate_is_of_prompts():
    with begin() as llm:
        assert llm.stats().hit_rate == 0.0
        ask(llm, [text(80, 6)])
        ask(llm, [text(80, 6)])
        ask(llm, [text(80, 6) + text(40, 7)], SamplingParams(n=3, seed=1, max_tokens=2, ignore_eos=True))
        stats = llm.stats()
        assert (stats.prompt_tokens, stats.prompt_tokens_cached) == (80 + 80 + 120, 79 + 80)
        assert stats.hit_rate == 159 / 280 == stats.as_dict()["hit_rate"]
        assert stats.tokens_forked > 0


def test_with_caching_off_nothing_is_read_and_nothing_is_kept():
    with begin(enable_prefix_caching=False) as llm:
        outputs = [ask(llm, [text(80, 8)])[0] for _ in range(2)] + ask(llm, [text(80, 8)] * 4)
        assert all(output.cache.num_tokens == 0 for output in outputs)
        stats = llm.stats()
        assert (stats.blocks_cached, stats.tokens_cached, stats.hit_rate) == (0, 0, 0.0)


def test_quotas_bound_what_a_tenant_leaves_behind():
    with begin(num_blocks=100, cache_quotas={"small": 64, "none": 0}, default_cache_quota=160) as llm:
        for tenant, kept in (("small", 4), ("none", 0), ("other", 10), ("else", 10)):
            before = llm.stats().blocks_cached
            for seed in range(4):
                ask(llm, [text(100, seed)], tenant=tenant)
            assert llm.stats().blocks_cached - before == kept
        stats = llm.stats()
        assert stats.evictions_quota > 0 and stats.evictions_capacity == 0
        # The newest stays, and a prompt beyond the quota keeps its beginning.
        assert ask(llm, [text(100, 3)], tenant="small")[0].num_cached_tokens == 64
        assert ask(llm, [text(100, 3)], tenant="none")[0].cache == CacheReport(miss="evicted")
        assert ask(llm, [text(100, 3)], tenant="other")[0].num_cached_tokens == 99


@both_indexes
@pytest.mark.parametrize("options", [{"tenant": "B"}, {"cache_salt": "B"}])
@pytest.mark.parametrize("num_blocks", [24, 256])
def test_nothing_that_one_tenant_sees_depends_on_what_another_computed(prefix_index, options, num_blocks):
    """A's traffic has the same shape in all runs; its content is B's own, or not, or B's under evictions."""
    prompts = [text(60, 1), text(60, 1) + text(50, 2), text(150, 3), text(60, 1), text(150, 3)[:90], text(60, 1) + text(50, 2)]

    def seen(content_of_a):
        with begin(prefix_index=prefix_index, num_blocks=num_blocks) as llm:
            reports = []
            for round, prompt in enumerate(prompts * 2):
                ask(llm, [content_of_a(prompt, round)], tenant="A")
                [output] = ask(llm, [prompt], **options)
                reports.append((output.num_cached_tokens, output.cache, output.outputs[0].token_ids))
            return reports

    equal = seen(lambda prompt, round: prompt)
    # As long, sharing as much with what A itself sent before, and nothing with B.
    unequal = seen(lambda prompt, round: [4 + (token + 100) % (VOCAB - 4) for token in prompt])
    assert equal == unequal
    assert sum(count for count, _, _ in equal) > 0
    assert num_blocks > 24 or {"evicted"} & {report.miss for _, report, _ in equal}
