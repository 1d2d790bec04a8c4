"""What the tests of law 1 share: mixed requests, the answers that each gives alone, and memory that is poisoned when it is let go."""

import random
from collections.abc import Sequence
from typing import Any

from engine_models import kv_spec

from octavo import LLM, SamplingParams
from octavo.core.plan import Chunk, StepPlan, StepResult
from octavo.kernels.reference import paged_layer
from octavo.runner.runner import TorchRunner

Ask = tuple[list[int], SamplingParams]


def mixed_requests(count: int, vocab: int, *, seed: int, longest: int = 180, tokens: int = 40) -> list[Ask]:
    """Prompts of 1 to `longest` tokens; greedy and seeded sampling with every filter and penalty; logprobs on all."""
    rng = random.Random(seed)
    asks: list[Ask] = []
    for index in range(count):
        prompt = [rng.randrange(4, vocab) for _ in range(rng.choice([1, 2, 15, 16, 17, 31, 64, rng.randint(3, longest)]))]
        options: dict[str, Any] = {"max_tokens": rng.randint(2, tokens), "logprobs": 2, "ignore_eos": True}
        if index % 2:
            options |= {
                "temperature": rng.choice([0.5, 1.0, 1.5]),
                "top_p": rng.choice([1.0, 0.9]),
                "top_k": rng.choice([0, 20]),
                "min_p": rng.choice([0.0, 0.02]),
                "seed": rng.randrange(2**40),
                "presence_penalty": rng.choice([0.0, 0.7]),
                "repetition_penalty": rng.choice([1.0, 1.2]),
            }
        else:
            options["temperature"] = 0.0
        asks.append((prompt, SamplingParams(**options)))
    return asks


def answers(llm: LLM, asks: Sequence[Ask], *, together: bool) -> list[Any]:
    """Tokens and logprobs of each request, as exact values."""
    if together:
        outputs = llm.generate([prompt for prompt, _ in asks], [params for _, params in asks], use_tqdm=False)
    else:
        outputs = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt, params in asks]
    llm.check()
    return [[(sample.token_ids, sample.logprobs, sample.finish_reason) for sample in output.outputs] for output in outputs]


def enqueue(llm: LLM, asks: Sequence[Ask], **options: Any) -> list[str]:
    """Queue the requests, without a step: their ids."""
    requests = llm.inputs.requests([prompt for prompt, _ in asks], [params for _, params in asks], [options] * len(asks))
    for request in requests:
        llm.engine.add_request(request)
    return [request.request_id for request in requests]


class PoisoningRunner:
    """Fills with NaN what nobody may read any more, and what a sequence is about to write, so that a read of stale memory shows.

    That is: in blocks that no lease holds, all from the first place on that can't be found; in those that a chunk writes, all from
    its first token on.
    Raises AssertionError for a chunk that writes where another sequence reads, or over what can be found.

    poisoned: places (of one token each) so far.
    """

    def __init__(self, llm: LLM, arena: Any) -> None:
        manager, config = llm.engine.scheduler.manager, llm.config
        self._runner: TorchRunner = llm.engine.runner
        self._pool, self._index, self._size = manager._pool, manager._index, config.block_size
        spec = kv_spec(config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype, config.block_size)
        assert spec.block_bytes == arena.block_bytes
        self._layers = [paged_layer(arena.bytes, spec, i) for i in range(len(spec.layers))]
        self._tables: dict[int, list[int]] = {}
        self._poisoned_from: dict[int, int] = dict.fromkeys(range(llm.memory_plan.num_blocks), 0)
        self.poisoned = 0

    def execute(self, plan: StepPlan) -> StepResult:
        for seq_id in plan.released:
            self._tables.pop(seq_id, None)
        self._tables.update({start.seq_id: [] for start in plan.started})
        for chunk in plan.chunks:
            self._tables[chunk.seq_id][chunk.first_block :] = chunk.new_blocks
        for block, before in list(self._poisoned_from.items()):
            if before and not self._pool.count(block):
                self._poison(block, self._index.fill(block))
        for chunk in plan.chunks:
            if chunk.write:
                self._expect_writes(chunk)
        return self._runner.execute(plan)

    def seconds(self) -> dict[str, float]:
        return self._runner.seconds()

    def _expect_writes(self, chunk: Chunk) -> None:
        size, table, copied = self._size, self._tables[chunk.seq_id], {destination for _, destination in chunk.copies}
        end = chunk.start + len(chunk.tokens)
        for place in range(chunk.start // size, (end - 1) // size + 1):
            block, first = table[place], max(0, chunk.start - place * size)
            readers = [seq_id for seq_id, other in self._tables.items() if seq_id != chunk.seq_id and block in other]
            assert not readers, f"sequence {chunk.seq_id} writes into block {block}, which sequences {readers} read"
            fill = self._index.fill(block)
            assert fill <= first, f"sequence {chunk.seq_id} writes from place {first} of block {block}, of which {fill} can be found"
            self._poison(block, 0 if block in copied else first)
            # A copy brings along what follows in its source, until the next write into it.
            self._poisoned_from[block] = size if block in copied else min(size, end - place * size)

    def _poison(self, block: int, first: int) -> None:
        before = self._poisoned_from[block]
        if before <= first:
            return
        for layer in self._layers:
            pair = layer.values.shape[3]
            for page in range(first // layer.page_tokens, self._size // layer.page_tokens):
                row = max(0, first - page * layer.page_tokens)
                layer.keys[block, page, row:] = float("nan")
                layer.values[block, page, row // pair, row % pair :] = float("nan")
                layer.values[block, page, row // pair + 1 :] = float("nan")
        self._poisoned_from[block] = first
        self.poisoned += before - first
