"""What the tests of law 1 share: mixed requests, the answers that each gives alone, and memory that is poisoned when it is let go."""

import random
from collections.abc import Sequence
from typing import Any

from octavo import LLM, SamplingParams
from octavo.core.plan import StepPlan, StepResult
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


class PoisoningRunner:
    """Fills the blocks of a sequence with NaN the moment it lets them go, so that a read of stale memory shows."""

    def __init__(self, runner: TorchRunner, arena: Any) -> None:
        self._runner, self._arena = runner, arena
        self._blocks: dict[int, list[int]] = {}
        self.poisoned = 0

    def execute(self, plan: StepPlan) -> StepResult:
        for seq_id in plan.released:
            for block in self._blocks.pop(seq_id, []):
                self._arena.poison_block(block)
                self.poisoned += 1
        for chunk in plan.chunks:
            self._blocks.setdefault(chunk.seq_id, []).extend(chunk.new_blocks)
        return self._runner.execute(plan)

    def seconds(self) -> dict[str, float]:
        return self._runner.seconds()
