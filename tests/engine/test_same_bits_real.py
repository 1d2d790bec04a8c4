"""Law 1 on the real model: tokens and logprobs of mixed requests, alone and together, in both dtypes."""

import pytest
from same_bits import answers, mixed_requests

from octavo import LLM
from octavo.kernels.native import available_paths

ASKS = mixed_requests(10, 49152, seed=21, longest=120, tokens=14)
POOL_TOKENS = 2048


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_model_keeps_the_law(dtype):
    def start(**settings):
        return LLM("smollm2-135m", dtype=dtype, max_model_len=256, **settings)

    with start(num_blocks=POOL_TOKENS // 16) as llm:
        assert llm.engine.runner.executor.name == available_paths()[0]
        expected = answers(llm, ASKS, together=False)
        assert answers(llm, ASKS, together=True) == expected
    with start(num_blocks=2, block_size=128, max_num_batched_tokens=64) as llm:
        assert answers(llm, ASKS, together=True) == expected
    with start(num_blocks=20, max_num_batched_tokens=64) as llm:
        assert answers(llm, ASKS, together=True) == expected
