"""`LLM` and `AsyncLLM`: Octavo as a library."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from octavo.core.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.build import build_engine, load_tokenizer
from octavo.engine.client import EngineClient
from octavo.engine.collect import Collector
from octavo.engine.config import make_config
from octavo.engine.engine import Engine
from octavo.engine.inputs import InputProcessor, PromptInput
from octavo.engine.interrupt import Interrupt
from octavo.engine.stepping import steps
from octavo.spec.budget import MemoryPlan
from octavo.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model, ready to answer; the engine runs in this process.  All settings are those of `EngineConfig`.

    Calls from several threads take turns.  Raises OctavoError kin; see docs/ARCHITECTURE.md.

        with LLM("smollm2-135m") as llm:
            print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)
    """

    def __init__(self, model: str, **settings: Any) -> None:
        built = build_engine(make_config(model, settings))
        self.config = built.config
        self.engine: Engine = built.engine
        self.tokenizer: Tokenizer = built.tokenizer
        self.memory_plan: MemoryPlan = built.plan
        fitting = built.engine.scheduler.max_tokens_that_fit
        self.inputs = InputProcessor(built.tokenizer, built.limits, built.config.seed, fitting)
        self._turn = threading.Lock()
        self._closed = False

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        tenant: str | Sequence[str] = "default",
        cache_salt: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """Answer every prompt; results in input order.

        prompts: text, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these.
        sampling_params: one for all, or one for each.  use_tqdm: a progress bar once the work takes longer than two seconds, where
        the error stream is a terminal.
        tenant, cache_salt: whose memory it is, one for all or one for each: only requests of the same two share what was computed.

        Every prompt is checked before any is queued: InvalidRequestError names the index of the one that can't be served.  What
        fails while running sets its own output's finish_reason to "error", and `error` to the cause; the others return.
        """
        batch = _as_list(prompts)
        options = _options(len(batch), priority=(priority, int), tenant=(tenant, str), cache_salt=(cache_salt, str))
        return self._answer(batch, sampling_params, options, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tenant: str | Sequence[str] = "default",
        cache_salt: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, rendered by the model's chat template.  Otherwise as `generate`.

        chat_template: Jinja source to use instead of the model's; what is computed under it is shared only with requests that sent
        the same.  chat_template_kwargs, tools: passed to the template.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise InvalidRequestError(f"messages must be a list of messages or of conversations, not {type(messages).__name__}")
        if not messages:
            raise InvalidRequestError("there are no messages; send at least one")
        conversations: Any = [messages] if isinstance(messages[0], Mapping) else messages
        variables = _template_variables(chat_template_kwargs, tools)
        prompts: list[PromptInput] = []
        for index, conversation in enumerate(conversations):
            if not isinstance(conversation, Sequence) or isinstance(conversation, str | bytes):
                raise InvalidRequestError(f"a conversation is a list of messages, not {conversation!r}", index=index)
            try:
                prompts.append(
                    self.tokenizer.encode_chat(
                        conversation, add_generation_prompt=add_generation_prompt, chat_template=chat_template, **variables
                    )
                )
            except InvalidRequestError as error:
                raise InvalidRequestError(error.detail, index=index) from error
        options = _options(len(prompts), tenant=(tenant, str), cache_salt=(cache_salt, str))
        return self._answer(prompts, sampling_params, [{**one, "chat_template": chat_template} for one in options], use_tqdm)

    def _answer(
        self, prompts: Sequence[PromptInput], sampling_params: Any, options: list[dict[str, Any]], use_tqdm: bool
    ) -> list[RequestOutput]:
        params = _spread("sampling_params", sampling_params or SamplingParams(), len(prompts), SamplingParams)
        with self._turn:
            if self._closed:
                raise OctavoError("this LLM is closed; make a new one")
            return self._run(self.inputs.requests(prompts, params, options), use_tqdm)

    def _run(self, requests: list[Request], use_tqdm: bool) -> list[RequestOutput]:
        collectors = {request.request_id: Collector(request) for request in requests}
        # None lets tqdm decide: it draws on a terminal, never into a pipe or a file.
        bar = tqdm(total=len(requests), desc="requests", disable=None if use_tqdm else True, delay=2, leave=False)
        # Ctrl-C waits for the end of a step, so that none is torn in the middle; what was queued is aborted.
        with Interrupt() as interrupt, bar:
            for deltas in steps(self.engine, requests):
                for delta in deltas:
                    collectors[delta.request_id].add(delta)
                    bar.update(delta.finished)
                if interrupt.asked:
                    raise KeyboardInterrupt
        return [collectors[request.request_id].output(unfinished="abort") for request in requests]

    def stats(self) -> EngineStats:
        """Blocks, tokens and requests, at this moment and since the start."""
        return self.engine.stats()

    def check(self) -> None:
        """Raise InvariantError unless every law of the memory holds."""
        self.engine.check()

    def close(self) -> None:
        """Give weights, workspaces and the pool back.  Waits for a call in progress; closing again does nothing."""
        with self._turn:
            self._closed = True
            self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLLM:
    """As `LLM`, for asyncio: the engine runs in a process of its own, so that this one's event loop never waits for a step."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.config = make_config(model, settings)
        if self.config.kv_layout != "paged":
            raise ConfigError(
                f"kv_layout={self.config.kv_layout!r} is a baseline for LLM and the benchmarks; AsyncLLM serves paged memory"
            )
        self.tokenizer = load_tokenizer(self.config)
        self._client = EngineClient(self.config)
        self.memory_plan = self._client.plan
        self._inputs = InputProcessor(self.tokenizer, self._client.limits, self.config.seed)

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Yield deltas: each output's `text` and `token_ids` are what is new.  Leaving the iterator aborts the request.

        priority, tenant, cache_salt: as for `LLM.generate`.
        """
        options: dict[str, Any] = {"priority": priority, "tenant": tenant, "cache_salt": cache_salt}
        if request_id is not None:
            options["request_id"] = request_id
        # In a thread: a long text takes a while to split, and the other streams' deltas must not wait for it.
        request = await asyncio.to_thread(self._inputs.request, prompt, sampling_params or SamplingParams(), **options)
        stream = self._client.stream(request)
        try:
            async for delta in stream:
                yield delta
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def abort(self, request_id: str) -> bool:
        """End a running request; False when there is none of that id."""
        return await self._client.abort(request_id)

    async def stats(self) -> EngineStats:
        """As `LLM.stats`, between two steps of the engine."""
        return await self._client.stats()

    async def check(self) -> None:
        """As `LLM.check`."""
        await self._client.stats(check=True)

    def close(self) -> None:
        """End the engine process and wait for it; streams that still run raise EngineDeadError."""
        self._client.close()

    async def aclose(self) -> None:
        """As `close`; the event loop goes on meanwhile."""
        await self._client.aclose()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _as_list(prompts: Any) -> list[PromptInput]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts must be text, token ids, or a list of prompts, not {type(prompts).__name__}")
    # The first entry tells which list it is; a wrong one further on is then named as what it was meant to be.
    return [prompts] if prompts and isinstance(prompts[0], int) else list(prompts)


def _options(count: int, **given: tuple[Any, type]) -> list[dict[str, Any]]:
    """The options of each prompt.  given: by name, a value for all or one for each, and its type.  Raises InvalidRequestError."""
    spread = {name: _spread(name, value, count, kind) for name, (value, kind) in given.items()}
    return [{name: values[i] for name, values in spread.items()} for i in range(count)]


def _template_variables(variables: Any, tools: Any) -> dict[str, Any]:
    """What a chat's caller gives to the template.  Raises InvalidRequestError."""
    if variables is not None and not (isinstance(variables, Mapping) and all(isinstance(name, str) for name in variables)):
        raise InvalidRequestError(f"chat_template_kwargs must be a mapping from names to values, not {variables!r}")
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str | bytes)):
        raise InvalidRequestError(f"tools must be a list of mappings, not {type(tools).__name__}")
    taken = {"self", "messages", "add_generation_prompt", "chat_template", "tools", "parse_special"} & set(variables or {})
    if taken:
        raise InvalidRequestError(f"chat_template_kwargs can't hold {', '.join(sorted(taken))}: the template has it from elsewhere")
    return {**(variables or {}), **({} if tools is None else {"tools": list(tools)})}


def _spread(name: str, value: Any, count: int, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRequestError(f"{name} must be of {kind.__name__}, one for all or one for each prompt, not {value!r}")
    values = list(value)
    if len(values) != count:
        raise InvalidRequestError(f"{name} has {len(values)} entries for {count} prompts; give one for all, or one for each")
    return values
