"""Reported faults of prefix caches, replayed on an engine: wrong hits (K01), leaks (K02), answers that change (K06), tenants (K11).

Those that the memory alone can show, and its cliffs (K12): tests/kv/test_field_cases_prefixes.py.
Tested elsewhere, too: K01-03 in tests/core/test_cache_key.py; K01-05 and K11-02 in tests/kv/test_prefix_index.py; K02-02, K02-04,
K02-06 and K06-04 in tests/engine/test_answered.py; K06-01, K06-03 and K06-05 in tests/engine/test_same_bits.py.
"""

import itertools
import random
from dataclasses import replace

import pytest
from engine_models import VOCAB, start
from same_bits import PoisoningRunner, enqueue

from octavo import SamplingParams
from octavo.core.outputs import CacheReport
from octavo.core.plan import StepResult
from octavo.engine import build
from octavo.kv import make_kv_cache
from octavo.kv.hash_index import HashIndex
from octavo.runner.arena import Arena

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1, ignore_eos=True, seed=0)
both_indexes = pytest.mark.parametrize("prefix_index", ["hash", "radix"])


def prompt(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(4, VOCAB) for _ in range(length)]


def ask(llm, ids, params=GREEDY, **options):
    [output] = llm.generate([ids], params, use_tqdm=False, **options)
    llm.check()
    return output


def drain(llm):
    """All that was held is back, and after a flush all is free."""
    llm.check()
    stats = llm.stats()
    assert (llm.engine.has_work, stats.waiting, stats.running, stats.blocks_leased) == (False, 0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert llm.engine.prefixes.reset() == stats.blocks_cached
    assert llm.stats().blocks_free == stats.blocks_total
    llm.check()


@pytest.fixture
def poisoned(monkeypatch):
    """`start`, over memory in which everything that may not be read is NaN."""
    arenas = []

    def arena(*args):
        arenas.append(Arena(*args, poison=True))
        return arenas[-1]

    monkeypatch.setattr(build, "Arena", arena)

    def begin(**settings):
        llm = start(**settings)
        llm.engine.runner = PoisoningRunner(llm, arenas[-1])
        return llm

    return begin


@pytest.fixture(scope="module")
def cold():
    """What a prompt gets from an engine that keeps nothing."""
    with start(enable_prefix_caching=False) as llm:
        yield lambda ids, params=GREEDY: ask(llm, ids, params).outputs


@both_indexes
def test_k01_03_namespaces_are_pairs_not_joined_texts(prefix_index):
    ids = prompt(64)
    parts = ["", "a", "ab", "abc", "b", "bc", "c", "default", "\x00"]
    with start(prefix_index=prefix_index, num_blocks=600) as llm:
        pairs = list(itertools.product(parts, parts))
        for tenant, salt in pairs:
            assert ask(llm, ids, tenant=tenant or "default", cache_salt=salt).num_cached_tokens == (
                63 if tenant == "default" and ("", salt) in pairs else 0
            )
        for tenant, salt in pairs:
            assert ask(llm, ids, tenant=tenant or "default", cache_salt=salt).num_cached_tokens == 63


class CountingIndex(HashIndex):
    """Counts what was refused."""

    refused = 0

    def insert(self, cursor, tokens, start, block):
        insertion = super().insert(cursor, tokens, start, block)
        self.refused += not insertion.findable
        return insertion


@pytest.mark.parametrize("bits", [8, 2])
def test_k01_05_under_a_tiny_hash_every_answer_is_right(monkeypatch, poisoned, cold, bits):
    indexes = []

    def with_tiny_hash(**settings):
        indexes.append(CountingIndex(16, hash_chunk=lambda chunk: hash(chunk) % 2**bits))
        return make_kv_cache(**settings | {"prefix_index": indexes[-1]})

    monkeypatch.setattr(build, "make_kv_cache", with_tiny_hash)
    one = replace(GREEDY, max_tokens=1)
    with poisoned(num_blocks=2000) as llm:
        prompts = [prompt(64, n // 2) for n in range(600)]
        outputs = llm.generate(prompts, one, use_tqdm=False)
        assert all(output.outputs == cold(ids, one) for ids, output in zip(prompts[::2], outputs[::2], strict=True))
        assert [output.outputs[0].token_ids for output in outputs[::2]] == [output.outputs[0].token_ids for output in outputs[1::2]]
        assert indexes[0].refused > 100  # collisions: else nothing was tested
        drain(llm)


@pytest.mark.parametrize("how", ["the runner raises", "it is aborted and nothing is computed", "it is aborted and computed"])
def test_k01_06_what_was_not_computed_is_not_found(poisoned, cold, how):
    ids = prompt(64)

    class Bounces:
        def __init__(self, llm, request_id):
            self._llm, self._runner, self._request_id = llm, llm.engine.runner, request_id

        def execute(self, plan):
            self._llm.engine.runner = self._runner
            if how == "the runner raises":
                raise MemoryError("no workspace")
            self._llm.engine.abort(self._request_id)
            return self._runner.execute(plan) if how.endswith("and computed") else StepResult({}, 0.01)

        def seconds(self):
            return {}

    with poisoned() as llm:
        for _ in range(3):
            [request_id] = enqueue(llm, [(ids, GREEDY)])
            llm.engine.runner = Bounces(llm, request_id)
            while llm.engine.has_work:
                llm.engine.step()
            assert llm.stats().blocks_free == llm.stats().blocks_total
        assert (output := ask(llm, ids)).num_cached_tokens == 0
        assert output.outputs == cold(ids)
        assert ask(llm, ids + prompt(10, 1)).outputs == cold(ids + prompt(10, 1))
        drain(llm)


def test_k01_07_long_prompts_are_answered_with_caching_as_without():
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    answers = []
    for caching, budget in itertools.product((True, False), (128, 4096)):
        with start(enable_prefix_caching=caching, max_num_batched_tokens=budget, num_blocks=700, max_positions=8192) as llm:
            for length in (1000, 4000, 7000):
                for _ in range(2):
                    [sample] = ask(llm, prompt(length, length), params).outputs
                    answers.append((length, len(sample.token_ids), sample.finish_reason, sample.token_ids))
    assert {(length, count, reason) for length, count, reason, _ in answers} == {(n, 50, "length") for n in (1000, 4000, 7000)}
    assert len(set(answers)) == 3


# Leaks.


def test_k02_01_who_leaves_gives_back_what_it_shares(cold):
    shared = prompt(100)
    params = replace(GREEDY, max_tokens=500)
    with start(num_blocks=128) as llm:
        rng = random.Random(1)
        for round in range(50):
            drawn = [replace(params, temperature=1.0, seed=n, n=1 + n % 3) for n in range(4)]
            ids = enqueue(llm, [(shared + prompt(round % 20, n), one) for n, one in enumerate(drawn)])
            for _ in range(rng.randint(0, 6)):
                llm.engine.step()
            for request_id in rng.sample(ids, 4):
                assert llm.engine.abort(request_id)
                llm.check()
            stats = llm.stats()
            assert (stats.running, stats.waiting, stats.blocks_leased) == (0, 0, 0)
        assert ask(llm, shared).outputs == cold(shared)
        drain(llm)


@both_indexes
def test_k02_02_every_round_ends_at_the_baseline(prefix_index):
    with start(num_blocks=200, prefix_index=prefix_index) as llm:
        rng = random.Random(4)
        for _ in range(8):
            prompts = [prompt(16 * rng.randint(1, 4) + rng.randint(-1, 1), rng.randrange(6)) for _ in range(60)]
            params = [
                SamplingParams(
                    temperature=1.0, seed=i, n=rng.choice([1, 1, 2]), max_tokens=rng.choice([1, 2, 16, 17]), stop=["a", "b"]
                )
                for i in range(60)
            ]
            llm.generate(prompts, params, use_tqdm=False)
            llm.check()
            stats = llm.stats()
            assert (stats.blocks_leased, stats.blocks_saved, stats.blocks_shared) == (0, 0, 0)
            assert stats.blocks_free + stats.blocks_cached == 200
        assert llm.stats().hit_rate > 0.3
        drain(llm)


def test_k02_03_those_that_wait_hold_nothing_of_what_they_will_find():
    shared = prompt(128)
    with start(num_blocks=64, max_num_seqs=2) as llm:
        ask(llm, shared)
        running = enqueue(llm, [(prompt(60, n), replace(GREEDY, max_tokens=40)) for n in (1, 2)])
        llm.engine.step()
        before = llm.stats()
        waiting = enqueue(llm, [([*shared, 5 + n], GREEDY) for n in range(20)])
        llm.engine.step()
        stats = llm.stats()
        assert (stats.waiting, stats.blocks_leased, stats.blocks_cached) == (20, before.blocks_leased, before.blocks_cached)
        assert all(llm.engine.abort(request_id) for request_id in waiting)
        while llm.engine.has_work:
            llm.engine.step()
        assert running
        drain(llm)


def test_k02_04_an_abort_in_the_step_of_the_last_token(cold):
    with start(num_blocks=32) as llm:
        rng = random.Random(3)
        for _ in range(500):
            asks = [(prompt(rng.choice([15, 16, 17, 40]), 1), replace(GREEDY, max_tokens=rng.randint(1, 2))) for _ in range(2)]
            ids = enqueue(llm, asks)
            while llm.engine.has_work:
                llm.engine.step()
                llm.engine.abort(rng.choice(ids))
            llm.check()
        assert ask(llm, prompt(40, 1)).outputs == cold(prompt(40, 1))
        drain(llm)


@pytest.mark.parametrize("when", range(0, 12, 2))
def test_k02_06_the_end_of_one_that_follows_or_shares_leaves_the_other_alone(cold, when):
    shared = prompt(100)
    for lost in (0, 1):
        with start(max_num_batched_tokens=64) as llm:
            ids = enqueue(llm, [(shared, GREEDY), (shared, GREEDY)])
            tokens = []
            for step in range(100):
                if step == when:
                    llm.engine.abort(ids[lost])
                for output in llm.engine.step():
                    if output.request_id == ids[1 - lost]:
                        tokens += output.outputs[0].token_ids
                if not llm.engine.has_work:
                    break
            assert tuple(tokens) == cold(shared)[0].token_ids
            drain(llm)


# Answers that change.


@both_indexes
@pytest.mark.parametrize("length", [63, 64, 65])
def test_k06_01_cold_warm_and_after_a_flush_are_one_answer(poisoned, cold, prefix_index, length):
    ids, params = prompt(length), replace(GREEDY, max_tokens=64, logprobs=5)
    with poisoned(prefix_index=prefix_index) as llm:
        for _ in range(2):
            outputs = [ask(llm, ids, params) for _ in range(5)]
            assert [output.num_cached_tokens for output in outputs] == [0] + [length - 1] * 4
            assert all(output.outputs == cold(ids, params) for output in outputs)
            drain(llm)  # and flush


def test_k06_02_a_seed_draws_the_same_under_preemption_and_hits(cold):
    params = [replace(GREEDY, temperature=1.0, max_tokens=60, seed=seed) for seed in range(20)]
    with start(num_blocks=24) as llm:
        for _ in range(2):
            outputs = llm.generate([prompt(20)] * 20, params, use_tqdm=False)
            for output, one in zip(outputs, params, strict=True):
                assert output.outputs[0].token_ids == cold(prompt(20), one)[0].token_ids
        assert llm.stats().preemptions > 0 and llm.stats().hit_rate > 0
        drain(llm)


def test_k06_03_a_pair_is_the_same_whatever_came_before(poisoned, cold):
    rng = random.Random(6)
    pair = prompt(90)
    lengths = ((0, 50), (10, 3), (16, 40), (31, 1), (64, 16), (70, 9), (89, 70), (90, 5))
    history = [pair[:length] + prompt(tail, tail) for length, tail in lengths]
    with poisoned(num_blocks=24) as llm:
        for _ in range(20):
            for ids in rng.sample(history, len(history)):
                ask(llm, ids, replace(GREEDY, max_tokens=rng.randint(1, 12)))
            assert ask(llm, pair).outputs == ask(llm, pair).outputs == cold(pair)
            if rng.random() < 0.3:
                llm.engine.prefixes.reset()
        assert llm.stats().evictions_capacity > 0


# Tenants.


@both_indexes
@pytest.mark.parametrize("other", [{"tenant": "B"}, {"cache_salt": "B"}])
def test_k11_01_a_guess_costs_the_same_right_or_wrong(prefix_index, other):
    secret, costs = prompt(256), set()
    for guess in (secret, secret[:128] + prompt(128, 1), prompt(256, 2)):
        with start(prefix_index=prefix_index) as llm:
            ask(llm, secret, tenant="A")
            before, output = llm.stats().tokens_computed, ask(llm, guess, **other)
            costs.add((llm.stats().tokens_computed - before, output.num_cached_tokens, output.cache))
            assert ask(llm, secret, tenant="A").num_cached_tokens == 255  # else nothing was tested
    assert costs == {(256 + 7, 0, CacheReport(miss="no match"))}


@both_indexes
def test_k11_02_prompts_made_to_collide_share_what_is_equal_and_no_more(prefix_index):
    base, one = prompt(64), SamplingParams(temperature=0.0, max_tokens=1)
    crafted = []
    for at in range(0, 63, 3):
        crafted += [[*base[:at], (base[at] + a) % VOCAB, (base[at + 1] - a) % VOCAB, *base[at + 2 :]] for a in (1, 2, 31, 256)]
        crafted.append([*base[:at], base[at + 1], base[at], *base[at + 2 :]])
    crafted += [[0] * zeros + base for zeros in (1, 15, 16, 17)]
    crafted += [base[shift:] for shift in (1, 15, 16, 17, 32)] + [base[16:32] + base]
    crafted += [[1, 23] * 32, [12, 3] * 32, [1, 2, 3] * 21]
    with start(prefix_index=prefix_index) as llm:
        llm.engine.scheduler._copy_seconds = 0.0
        for index, ids in enumerate(crafted):
            tenant = f"{index}"
            ask(llm, base, one, tenant=tenant)
            equal = next((n for n, (mine, theirs) in enumerate(zip(ids, base, strict=False)) if mine != theirs), 63)
            assert ask(llm, ids, one, tenant=tenant).num_cached_tokens == min(equal, len(ids) - 1)
