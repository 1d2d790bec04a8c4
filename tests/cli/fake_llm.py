"""A stand-in for `octavo.LLM`: token t of a request comes at its t-th step, one virtual second each; all that were sent run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from octavo.core.errors import InvalidRequestError
from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.config import EngineConfig
from octavo.spec.budget import MemoryPlan

BLOCK = 16
BLOCKS = 8
PLAN = MemoryPlan(1000, 100, 12800, 100, BLOCK, BLOCKS, 128, 64, 2.0, 99999, f"num_blocks={BLOCKS}")
EMPTY = EngineStats(
    block_size=BLOCK,
    blocks_total=BLOCKS,
    blocks_free=BLOCKS,
    blocks_cached=0,
    blocks_leased=0,
    blocks_quarantined=0,
    blocks_offline=0,
    tokens_useful=0,
    tokens_reserved=0,
    tokens_internal=0,
    tokens_external=0,
    tokens_free=BLOCK * BLOCKS,
    waiting=0,
    following=0,
    running=0,
    steps=0,
    preemptions=0,
    overtakes=0,
    tokens_computed=0,
    tokens_recomputed=0,
    tokens_cached=0,
    prompt_tokens=0,
    prompt_tokens_cached=0,
    tokens_forked=0,
    sharing_mean=0.0,
    sharing_steps=0,
    blocks_copied=0,
    output_share=1.0,
    prefill_speed=0.0,
)


class FakeTokenizer:
    """One token per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_chat(self, conversation: Any, **options: Any) -> list[int]:
        self.last = [dict(message) for message in conversation]
        return self.encode("".join(message["content"] for message in conversation))


class FakeInputs:
    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self.tokenizer = tokenizer
        self.count = 0

    def requests(self, prompts: Any, params: Any, options: Any) -> list[Request]:
        made = []
        for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) else None
            ids = self.tokenizer.encode(text) if text else prompt["prompt_token_ids"] if isinstance(prompt, Mapping) else prompt
            if len(ids) > 1000:
                raise InvalidRequestError(f"the prompt has {len(ids)} tokens", index=index)
            most = 4 if one.max_tokens is None else int(one.max_tokens)
            made.append(Request(f"r{self.count}", tuple(ids), one, most, one.seed or 7, frozenset(), text))
            self.count += 1
        return made


class FakeEngine:
    """fail: the id of a request that ends with an error at its first step.  on_step: called at the start of every step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.running: dict[str, list[Any]] = {}
        self.aborted: list[str] = []
        self.fail: str | None = None
        self.on_step: Any = lambda: None

    def add_request(self, request: Request) -> None:
        self.running[request.request_id] = [request, 0]

    def reset(self) -> None:
        for request_id in list(self.running):
            self.abort(request_id)

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        return self.running.pop(request_id, None) is not None

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def step(self) -> list[RequestOutput]:
        self.on_step()
        self.now += 1.0
        self.steps += 1
        outputs = []
        for request_id, state in list(self.running.items()):
            request, done = state
            state[1] = done = done + 1
            ended = done >= request.max_tokens
            failed = request_id == self.fail
            samples = tuple(
                CompletionOutput(
                    index=index,
                    text="" if failed else chr(ord("a") + (done - 1) % 26),
                    token_ids=() if failed else (done,),
                    logprobs=None,
                    seed=request.seed,
                    finish_reason="error" if failed else "length" if ended else None,
                    error="the step broke" if failed else None,
                )
                for index in range(request.params.n)
            )
            if ended or failed:
                del self.running[request_id]
            outputs.append(RequestOutput(request_id, request.prompt, request.prompt_token_ids, samples, ended or failed, 16))
        return outputs

    def step_seconds(self) -> dict[str, float]:
        return {"linear": 0.75 * self.now, "schedule": 0.05 * self.now}


class FakeLLM:
    """Every running request leases one block, half of it useful."""

    instances: ClassVar[list["FakeLLM"]] = []

    def __init__(self, model: str = "fake", **settings: Any) -> None:
        self.config = EngineConfig(model=model, **settings)
        self.memory_plan = replace(PLAN, num_blocks=settings.get("num_blocks") or BLOCKS, block_size=self.config.block_size)
        self.tokenizer = FakeTokenizer()
        self.inputs = FakeInputs(self.tokenizer)
        self.engine = FakeEngine()
        self.closed = False
        FakeLLM.instances.append(self)

    def stats(self) -> EngineStats:
        leased = len(self.engine.running)
        return replace(
            EMPTY,
            blocks_free=BLOCKS - leased,
            blocks_leased=leased,
            tokens_useful=leased * BLOCK // 2,
            tokens_reserved=leased * BLOCK // 2,
            tokens_free=(BLOCKS - leased) * BLOCK,
            running=leased,
            steps=self.engine.steps,
        )

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)
