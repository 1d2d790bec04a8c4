"""Law 1 with memory that is shared: whatever a request finds, follows, forks or loses, its bits are as if nothing were shared."""

import random
from dataclasses import replace

import pytest
from engine_models import VOCAB, start
from same_bits import PoisoningRunner, enqueue

from octavo import LLM, SamplingParams
from octavo.engine import build
from octavo.engine.collect import Collector
from octavo.kernels.native import available_paths
from octavo.runner.arena import Arena

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.1, max_tokens=6, logprobs=2, ignore_eos=True, seed=77)
POOL = 2048  # tokens

# Engines that keep nothing and share nothing, and what they answered, by what decides the bits.
_plain, _known = {}, {}


def text(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(4, VOCAB) for _ in range(length)]


def bits(output):
    samples = [(one.token_ids, one.logprobs, one.finish_reason, one.cumulative_logprob) for one in output.outputs]
    return samples, output.prompt_logprobs


class Checked:
    """An engine over poisoned memory, each of whose answers must be what a memory without sharing gives."""

    def __init__(self, llm, arena, alone):
        llm.engine.runner = PoisoningRunner(llm, arena)
        llm.engine.scheduler._copy_seconds = 0.0  # every head is worth its copy, on whatever machine
        self.llm, self._alone = llm, alone

    def answer(self, prompt, params=GREEDY):
        """The output of one request."""
        return self.answers([(prompt, params)])[0]

    def answers(self, asks, before_step=lambda: None):
        """The outputs of requests that arrive at once."""
        ids = enqueue(self.llm, asks)
        return [output for _, output in self.finish(ids, asks, before_step)]

    def finish(self, ids, asks, before_step=lambda: None):
        """(request id, output) of queued requests that must all be answered, in order."""
        engine, outputs = self.llm.engine, {}
        requests = {one.request.request_id: one.request for one in engine.scheduler._population.roster}
        collectors = {request_id: Collector(requests[request_id]) for request_id in ids}
        while engine.has_work:
            before_step()
            for delta in engine.step():
                if delta.request_id in collectors:
                    collectors[delta.request_id].add(delta)
            self.llm.check()
        for request_id, (prompt, params) in zip(ids, asks, strict=True):
            outputs[request_id] = collectors[request_id].output()
            assert outputs[request_id].finished
            assert bits(outputs[request_id]) == self._alone(prompt, params)
        stats = self.llm.stats()
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
        return list(outputs.items())


@pytest.fixture
def checked(monkeypatch):
    """Starts engines with the settings of a variant, and what else a test asks for."""
    arenas = []

    def arena(*args):
        arenas.append(Arena(*args, poison=True))
        return arenas[-1]

    monkeypatch.setattr(build, "Arena", arena)

    def of(variant, *, pool=POOL, **settings):
        dtype, kernels = variant["dtype"], variant.get("kernels", "auto")
        block_size = variant.get("block_size", 16)

        def alone(prompt, params):
            asked = (dtype, kernels, tuple(prompt), repr(params))
            if asked not in _known:
                if (dtype, kernels) not in _plain:
                    settings = {"kv_layout": "reserved", "reserve": "oracle", "enable_prefix_caching": False, "num_blocks": POOL // 16}
                    _plain[dtype, kernels] = start(dtype=dtype, kernels=kernels, **settings)
                _known[asked] = bits(_plain[dtype, kernels].generate([prompt], params, use_tqdm=False)[0])
            return _known[asked]

        return Checked(start(**{"num_blocks": pool // block_size, **variant, **settings}), arenas[-1], alone)

    return of


VARIANTS = {
    f"{index}, blocks of {block_size}, {dtype}": {"prefix_index": index, "block_size": block_size, "dtype": dtype}
    for index in ("hash", "radix")
    for block_size in (16, 64)
    for dtype in ("float32", "bfloat16")
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@every_variant
def test_cold_then_warm(checked, variant):
    one = checked(variant)
    for length in (1, 15, 16, 17, 63, 64, 65, 128):
        for params in (GREEDY, DRAWN):
            prompt = text(length, length)
            first, again = one.answer(prompt, params), one.answer(prompt, params)
            assert first.num_cached_tokens == (0 if params is GREEDY else length - 1)
            assert again.num_cached_tokens == length - 1


@every_variant
def test_the_head_of_a_block_and_what_diverges_inside_it(checked, variant):
    one = checked(variant)
    base = text(150, 1)
    one.answer(base)
    for end in (1, 7, 15, 16, 17, 63, 64, 70, 127, 128, 149):
        other = [*base[:end], 4 + (base[end] - 3) % (VOCAB - 4), *text(20, end)]
        assert one.answer(other, DRAWN).num_cached_tokens == end
    for end in (9, 64, 100):  # a beginning and nothing else
        assert one.answer(base[:end]).num_cached_tokens == end - 1
    assert one.answer(base).num_cached_tokens == 149  # nobody has written over what it left


def prefixed(count, length, seed):
    """Requests that share `length` tokens: some are just these, some end in the same block, some differ from the start."""
    shared = text(length, seed)
    prompts = [[*shared, *text(n % 5 * 9, seed + n)] if n % 8 != 7 else text(40, seed + n) for n in range(count)]
    return [(prompt, (GREEDY, DRAWN)[n % 2]) for n, prompt in enumerate(prompts)]


@every_variant
def test_thirty_two_at_once_share_what_one_of_them_computes(checked, variant):
    one = checked(variant, max_num_batched_tokens=64)
    asks = prefixed(32, 150, 2)
    outputs = one.answers(asks)
    shared = 150 // one.llm.config.block_size * one.llm.config.block_size
    assert sum(output.num_cached_tokens >= shared for output in outputs) == 27  # all that share but the one that computes


@every_variant
@pytest.mark.parametrize("fate", ["aborted", "failing", "preempted"])
def test_the_one_that_computes_for_others_is_lost(checked, variant, fate):
    one = checked(variant, max_num_batched_tokens=2048 if fate == "failing" else 64)
    asks = [([*text(150, 3), 9], GREEDY), *(ask for ask in prefixed(16, 150, 3) if len(ask[0]) >= 150)]
    ids = enqueue(one.llm, asks)
    engine, scheduler = one.llm.engine, one.llm.engine.scheduler
    if fate == "failing":
        engine.runner = Failing(engine.runner, seq_id=0)
        engine.step()
        assert one.llm.stats().following > 0
    else:
        engine.step()
        [leader] = scheduler._running
        assert (leader.request.request_id, leader.num_computed, one.llm.stats().waiting) == (ids[0], 64, 14)
        if fate == "aborted":
            assert engine.abort(ids[0])
        else:
            scheduler._preempt_youngest()
    lost = 0 if fate == "preempted" else 1
    one.finish(ids[lost:], asks[lost:])
    # The prefix is computed as often as somebody failed at it; the rest of a prompt and the answer's tokens come on top of it.
    own = sum(len(prompt) - 150 + params.max_tokens + variant["block_size"] for prompt, params in asks)
    assert one.llm.stats().tokens_computed <= own + 150 * (2 if fate == "failing" else 1)


class Failing:
    """Raises for every plan that holds this sequence; does the others."""

    def __init__(self, runner, seq_id):
        self._runner, self._seq_id = runner, seq_id

    def execute(self, plan):
        if any(chunk.seq_id == self._seq_id for chunk in plan.chunks):
            raise MemoryError("no workspace of 1234 bytes")
        return self._runner.execute(plan)

    def seconds(self):
        return self._runner.seconds()


@every_variant
def test_samples_that_fork_one_prompt(checked, variant):
    one = checked(variant)
    for length in (1, 31, 64, 100):
        eight = replace(DRAWN, n=8, max_tokens=20)
        one.answer(text(length, 4), eight)
        one.answer(text(length, 4), replace(DRAWN, n=2, best_of=8, max_tokens=20))
        one.answers([(text(length, 4), replace(eight, seed=5)), (text(length, 5), eight), (text(length, 4), GREEDY)])
    assert one.llm.stats().tokens_forked > 0


@every_variant
def test_forks_that_are_preempted(checked, variant):
    one = checked(variant, pool=512, max_num_batched_tokens=64)
    asks = [(text(70, seed), replace(DRAWN, n=4, max_tokens=60, seed=seed)) for seed in (5, 6, 7)]
    one.answers(asks)
    assert one.llm.stats().preemptions > 0


@every_variant
@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_evicted_then_computed_again(checked, variant, eviction):
    one = checked(variant, pool=384, eviction=eviction)
    prompts = [text(100, 6) + text(30 * n, 7 + n) for n in range(6)]
    for _ in range(2):
        for prompt in prompts:
            one.answer(prompt, DRAWN)
    assert one.llm.stats().evictions_capacity > 0
    assert one.llm.stats().prompt_tokens_cached > 0


@every_variant
def test_a_session_reads_what_it_generated(checked, variant):
    one = checked(variant)
    history = []
    for turn in range(6):
        prompt = history + text(23, turn)
        output = one.answer(prompt, replace(DRAWN, max_tokens=21))
        # The last token of an answer was given out and never read, so its K and V are the first that are missing.
        assert output.num_cached_tokens == max(0, len(history) - 1)
        history = prompt + list(output.outputs[0].token_ids)


@every_variant
def test_prompt_logprobs_read_nothing_and_leave_nothing_twice(checked, variant):
    one = checked(variant, max_num_batched_tokens=64)
    prompt = text(100, 8)
    one.answer(prompt)
    cached = one.llm.stats().blocks_cached
    scored = one.answer(prompt, replace(GREEDY, prompt_logprobs=1))
    assert (scored.cache.num_tokens, scored.cache.miss) == (0, "prompt logprobs asked")
    assert one.llm.stats().blocks_cached == cached
    fresh = text(90, 9)
    one.answers([(fresh, replace(GREEDY, prompt_logprobs=2)), (fresh, replace(DRAWN, prompt_logprobs=0)), (fresh, GREEDY)])
    assert one.answer(fresh, DRAWN).num_cached_tokens == 89


def storm(seed, count):
    """Requests over a small tree of prefixes, with every kind of parameter."""
    rng = random.Random(seed)
    trunk = text(140, 100)
    asks = []
    for index in range(count):
        prompt = trunk[: rng.choice([1, 16, 31, 64, 90, 128, 140])] + text(rng.choice([1, 3, 16, 40]), rng.randrange(4))
        params = replace(rng.choice([GREEDY, DRAWN]), max_tokens=rng.randint(1, 40), n=rng.choice([1, 1, 1, 3]))
        if params.n > 1:
            params = replace(params, temperature=1.0, seed=index)
        asks.append((prompt, replace(params, prompt_logprobs=rng.choice([None, None, None, 1]))))
    return asks


def weather(one, seed):
    """Between steps: now and then a sequence is preempted, or everything is forgotten."""
    rng = random.Random(seed)

    def before_step():
        chance, scheduler = rng.random(), one.llm.engine.scheduler
        if chance < 0.06 and scheduler._running:
            scheduler._preempt_youngest()
        elif chance < 0.1:
            one.llm.engine.prefixes.reset()

    return before_step


@every_variant
def test_all_of_it_at_once_in_a_small_memory(checked, variant):
    one = checked(variant, pool=512, max_num_batched_tokens=64, max_num_seqs=12)
    for round in range(2):
        one.answers(storm(round, 24), weather(one, round))
    stats = one.llm.stats()
    assert min(stats.preemptions, stats.evictions_capacity, stats.evictions_reset, stats.tokens_forked, stats.tokens_cached) > 0


@pytest.mark.parametrize("kernels", available_paths()[1:])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_of_it_on_every_instruction_path(checked, kernels, dtype):
    one = checked({"dtype": dtype, "kernels": kernels}, pool=512, max_num_batched_tokens=64)
    one.answers(storm(9, 16), weather(one, 9))
    assert one.llm.stats().tokens_cached > 0


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "bfloat16"])
def test_narrower_storage_is_shared_as_it_was_stored(checked, kv_cache_dtype):
    with start(kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False) as llm:
        expected = [bits(llm.generate([prompt], params, use_tqdm=False)[0]) for prompt, params in storm(10, 10)]
    with start(kv_cache_dtype=kv_cache_dtype, num_blocks=32) as llm:
        for _ in range(2):
            assert [bits(llm.generate([prompt], params, use_tqdm=False)[0]) for prompt, params in storm(10, 10)] == expected
        assert llm.stats().tokens_cached > 0


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        ("float32", {"prefix_index": "hash", "num_blocks": 64}),
        ("bfloat16", {"prefix_index": "radix", "block_size": 64, "num_blocks": 6}),
    ],
)
def test_the_real_model_shares_what_it_computes(dtype, settings):
    """A session of two turns, then others that begin as it did, at once; and each of these alone, where it finds nothing."""
    params = replace(GREEDY, max_tokens=4)
    drawn = [replace(DRAWN, seed=seed, n=1 + seed % 2, max_tokens=4) for seed in range(3)]
    with LLM("smollm2-135m", dtype=dtype, max_model_len=256, max_num_batched_tokens=64, **settings) as llm:
        llm.engine.scheduler._copy_seconds = 0.0

        def alone(prompt, one, salt):
            [output] = llm.generate([prompt], one, use_tqdm=False, cache_salt=salt)
            assert output.num_cached_tokens == 0
            return bits(output)

        [first] = llm.generate([text(40, 1)], params, use_tqdm=False)
        history = [*text(40, 1), *first.outputs[0].token_ids, *text(21, 2)]
        [second] = llm.generate([history], params, use_tqdm=False)
        assert second.num_cached_tokens == 43
        prompts = [[*history[:30], 5], text(20, 9), [*history[:64], 7]]
        outputs = llm.generate(prompts, drawn, use_tqdm=False)
        assert [output.num_cached_tokens for output in outputs] == [30, 0, 64]
        assert llm.stats().tokens_forked > 0
        llm.check()
        assert bits(second) == alone(history, params, "session")
        for index, (prompt, one) in enumerate(zip(prompts, drawn, strict=True)):
            assert bits(outputs[index]) == alone(prompt, one, f"{index}")
