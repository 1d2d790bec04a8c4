"""Law 1: a request's tokens and logprobs, bit for bit, alone and under everything that can happen to it."""

import random
from functools import partial

import pytest
from engine_models import VOCAB, start
from same_bits import PoisoningRunner, answers, mixed_requests

from octavo import SamplingParams
from octavo.engine import build
from octavo.kernels.native import available_paths
from octavo.runner.arena import Arena

ASKS = mixed_requests(32, VOCAB, seed=3)


@pytest.fixture(autouse=True)
def poisoned_arena(monkeypatch):
    arenas = []

    def arena(*args):
        arenas.append(Arena(*args, poison=True))
        return arenas[-1]

    monkeypatch.setattr(build, "Arena", arena)
    return arenas


@pytest.fixture(scope="module")
def alone():
    """Each request by itself, one after the other and nothing kept between them, per dtype; made once."""
    known = {}

    def of(dtype):
        if dtype not in known:
            with start(dtype=dtype, enable_prefix_caching=False) as llm:
                assert llm.engine.runner.executor.name == available_paths()[0]
                known[dtype] = answers(llm, ASKS, together=False)
        return known[dtype]

    return of


VARIANTS = {
    "batch": {},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "chunks of 2048": {"max_num_batched_tokens": 2048},
    "blocks of 32": {"block_size": 32, "num_blocks": 128},
    "blocks of 128": {"block_size": 128, "num_blocks": 64},
    "four at once": {"max_num_seqs": 4},
    "two threads": {"threads": 2},
    "reserved": {"kv_layout": "reserved", "reserve": "oracle", "num_blocks": 1024},
    "static": {"batching": "static", "num_blocks": 1024},
    "nothing cached": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_together_as_alone(alone, dtype, variant):
    with start(dtype=dtype, **VARIANTS[variant]) as llm:
        assert answers(llm, ASKS, together=True) == alone(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 32])
def test_preempted_as_alone(alone, poisoned_arena, dtype, block_size):
    with start(dtype=dtype, block_size=block_size, num_blocks=320 // block_size, max_num_batched_tokens=64) as llm:
        runner = llm.engine.runner = PoisoningRunner(llm, poisoned_arena[-1])
        assert answers(llm, ASKS, together=True) == alone(dtype)
        stats = llm.stats()
        assert stats.preemptions > 0
        assert runner.poisoned > 0
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


@pytest.mark.parametrize("path", available_paths()[1:])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_instruction_path_keeps_the_law(path, dtype):
    asks = mixed_requests(12, VOCAB, seed=8, longest=40, tokens=80)
    with start(dtype=dtype, kernels=path) as llm:
        assert llm.engine.runner.executor.name == path
        expected = answers(llm, asks, together=False)
    with start(dtype=dtype, kernels=path, num_blocks=12, max_num_batched_tokens=64) as llm:
        assert answers(llm, asks, together=True) == expected
        assert llm.stats().preemptions > 0


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "bfloat16"])
def test_narrower_storage_keeps_the_law(kv_cache_dtype):
    asks = mixed_requests(12, VOCAB, seed=9, tokens=16)
    with start(kv_cache_dtype=kv_cache_dtype) as llm:
        expected = answers(llm, asks, together=False)
    with start(kv_cache_dtype=kv_cache_dtype, block_size=64, num_blocks=8, max_num_batched_tokens=64) as llm:
        assert answers(llm, asks, together=True) == expected


@pytest.mark.parametrize("byte", [0xFF, 0x7F])  # NaN; and 3.4e38 in each of the wider types
def test_former_contents_never_matter(monkeypatch, alone, byte):
    class Filled(Arena):
        def poison(self):
            self.bytes.fill_(byte)

    monkeypatch.setattr(build, "Arena", partial(Filled, poison=True))
    with start() as llm:
        assert answers(llm, ASKS[:8], together=True) == alone("float32")[:8]


def test_the_order_of_a_batch_never_matters(alone):
    with start() as llm:
        backwards = answers(llm, ASKS[::-1], together=True)
    assert backwards[::-1] == alone("float32")


def test_k06_01_the_first_request_after_the_start_equals_all_later_ones(alone):
    with start() as llm:
        assert [answers(llm, ASKS[4:5], together=False)[0] for _ in range(5)] == [alone("float32")[4]] * 5


def test_k06_03_an_answer_does_not_depend_on_what_ran_before(alone):
    rng = random.Random(6)
    pair = [ASKS[0], ASKS[0]]
    with start(num_blocks=64) as llm:
        for _ in range(10):
            before = rng.sample(ASKS[1:], 5)
            assert answers(llm, before + pair, together=False)[-2:] == [alone("float32")[0]] * 2


@pytest.mark.parametrize("lengths", [(12, 3), (3, 12), (1, 200), (16, 17), (200, 16)])
def test_k06_05_a_neighbour_of_another_length_changes_nothing(lengths):
    asks = [([7 + length] * length, SamplingParams(temperature=0, max_tokens=3, logprobs=5, ignore_eos=True)) for length in lengths]
    with start() as llm:
        assert answers(llm, asks, together=True) == answers(llm, asks, together=False)
