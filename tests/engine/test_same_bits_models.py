"""Law 1 on models whose layers aren't all alike: mixtures of experts and windows, batched, shared, preempted and cut up."""

import functools

import pytest
import tokenizers
from same_bits import answers, mixed_requests
from tiny_models import VOCAB, tiny

from octavo import LLM
from octavo.kernels.native import available_paths

ASKS = mixed_requests(16, VOCAB, seed=5, longest=90, tokens=40)
MODELS = ["mixtral", "qwen3-moe-dense-too", "mistral"]


@functools.cache
def folder(name):
    """The tiny model with a tokenizer of as many bytes as it has tokens: prompts are token ids."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:VOCAB]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(tiny(name).folder / "tokenizer.json"))
    return tiny(name).folder


def start(name, **settings):
    return LLM(str(folder(name)), **{"threads": 1, "num_blocks": 128} | settings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_together_shared_and_preempted_as_alone(name, dtype):
    with start(name, dtype=dtype, enable_prefix_caching=False) as llm:
        assert llm.engine.runner.executor.name == available_paths()[0]
        alone = answers(llm, ASKS, together=False)
    with start(name, dtype=dtype, max_num_batched_tokens=48, threads=2) as llm:
        assert answers(llm, ASKS, together=True) == alone
        assert answers(llm, ASKS, together=True) == alone
        assert llm.stats().tokens_cached > 0
    with start(name, dtype=dtype, num_blocks=10, max_num_batched_tokens=64) as llm:
        assert answers(llm, ASKS, together=True) == alone
        assert llm.stats().preemptions > 0
