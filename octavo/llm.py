"""`LLM` and `AsyncLLM`: Octavo as a library."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from octavo.core.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.core.outputs import RequestOutput
from octavo.core.params import BeamSearchParams, SamplingParams
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.arguments import as_list, options_of, spread, template_variables
from octavo.engine.build import build_engine, load_tokenizer
from octavo.engine.client import EngineClient
from octavo.engine.collect import Collector
from octavo.engine.config import make_config
from octavo.engine.engine import Engine
from octavo.engine.inputs import InputProcessor, PromptInput
from octavo.engine.interrupt import Interrupt
from octavo.engine.messages import ListPins, PinTokens, Publish, ResetCache, Unpin, Unpublish
from octavo.engine.prefix_inputs import checked_name, checked_tenants, pin_request, publication_request
from octavo.engine.stepping import steps
from octavo.kv.manager import Pin
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
        batch = as_list(prompts)
        options = options_of(len(batch), priority=(priority, int), tenant=(tenant, str), cache_salt=(cache_salt, str))
        return self._answer(batch, sampling_params or SamplingParams(), options, use_tqdm)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        tenant: str | Sequence[str] = "default",
        cache_salt: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """Search the likeliest answers of every prompt: the search of transformers' `generate(num_beams=...)`.

        Each result's outputs are the best first, with `cumulative_logprob` and `score`.  Beams share the memory of what they have in
        common.  All else is as for `generate`.
        """
        batch = as_list(prompts)
        options = options_of(len(batch), priority=(priority, int), tenant=(tenant, str), cache_salt=(cache_salt, str))
        return self._answer(batch, params, options, use_tqdm, name="params", kind=BeamSearchParams)

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
        variables = template_variables(chat_template_kwargs, tools)
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
        options = options_of(len(prompts), tenant=(tenant, str), cache_salt=(cache_salt, str))
        params = sampling_params or SamplingParams()
        return self._answer(prompts, params, [{**one, "chat_template": chat_template} for one in options], use_tqdm)

    def publish_prefix(self, prefix: PromptInput, *, name: str, tenants: Collection[str] | str | None = None) -> int:
        """Compute `prefix` once and let `tenants` (a list; "all" or None: everybody) read it from memory: how many tokens of it.

        prefix: as a prompt.  Only its full blocks are published.  They are evicted last, and no tenant's quota pays for them.
        name: for `unpublish_prefix`; 1 to 512 characters.
        Raises InvalidRequestError for what can't be published and for a name in use, CapacityError when pins and publications would
        cover more of the pool than `pin_share`, ConfigError without prefix caching, OctavoError when computing it failed; then
        nothing is published.
        """
        readers = checked_tenants(tenants)
        request = publication_request(self.inputs, prefix, name)
        self._compute(request, partial(self.engine.publish, tenants=readers))
        return self._whole_blocks(request)

    def unpublish_prefix(self, name: str) -> bool:
        """From now on nobody finds it; who reads it goes on, then its blocks are free.  False when nothing is published as `name`."""
        return self.engine.prefixes.unpublish(checked_name(name))

    def pin_prefix(
        self, prefix: PromptInput, *, name: str, ttl: float | None = None, tenant: str = "default", cache_salt: str = ""
    ) -> int:
        """Compute what memory lacks of `prefix`, and evict it last, for `ttl` seconds (None: until `unpin_prefix`): how many tokens.

        Only full blocks are pinned, and of them those that are still there when all is computed: a tenant's quota, or others who need
        the memory, may leave fewer.  A running request never fails for a pin: it is given up before anybody is preempted.
        A pin of the same name is replaced.  Raises as `publish_prefix`.
        """
        request = pin_request(self.inputs, prefix, name, ttl, tenant, cache_salt)
        self._compute(request)
        return self.engine.prefixes.pin(name, request.prompt_token_ids, tenant, cache_salt, ttl)

    def unpin_prefix(self, name: str) -> bool:
        """False when there is no pin of that name (any more)."""
        return self.engine.prefixes.unpin(checked_name(name))

    def pins(self) -> list[Pin]:
        """Those that have not ended, by name: how many tokens each still keeps, and for how many seconds (None: without end)."""
        return self.engine.prefixes.pins()

    def reset_prefix_cache(self) -> int:
        """Forget everything that could be found, pins and what is published included; running requests go on.

        How many blocks became free.  A publication keeps its name and holds nothing any more: unpublish it, and publish it anew.
        """
        return self.engine.prefixes.reset()

    def _whole_blocks(self, request: Request) -> int:
        size = self.memory_plan.block_size
        return len(request.prompt_token_ids) // size * size

    def _compute(self, request: Request, add: Callable[[Request], None] | None = None) -> None:
        with self._turn:
            self._refuse_closed()
            _raise_failed(self._run([request], use_tqdm=False, add=add)[0])

    def _refuse_closed(self) -> None:
        if self._closed:
            raise OctavoError("this LLM is closed; make a new one")

    def _answer(
        self,
        prompts: Sequence[PromptInput],
        params: Any,
        options: list[dict[str, Any]],
        use_tqdm: bool,
        *,
        name: str = "sampling_params",
        kind: type[SamplingParams] | type[BeamSearchParams] = SamplingParams,
    ) -> list[RequestOutput]:
        each = spread(name, params, len(prompts), kind)
        with self._turn:
            self._refuse_closed()
            requests = self.inputs.requests(prompts, each, options, kind=kind)
            for index, request in enumerate(requests):
                if (reason := self.engine.scheduler.refuse_reason(request)) is not None:
                    raise InvalidRequestError(reason, index=index)
            return self._run(requests, use_tqdm)

    def _run(self, requests: list[Request], use_tqdm: bool, add: Callable[[Request], None] | None = None) -> list[RequestOutput]:
        collectors = {request.request_id: Collector(request) for request in requests}
        # None lets tqdm decide: it draws on a terminal, never into a pipe or a file.
        bar = tqdm(total=len(requests), desc="requests", disable=None if use_tqdm else True, delay=2, leave=False)
        # Ctrl-C waits for the end of a step, so that none is torn in the middle; what was queued is aborted.
        with Interrupt() as interrupt, bar:
            for deltas in steps(self.engine, requests, add):
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

    async def beam_search(
        self,
        prompt: PromptInput,
        params: BeamSearchParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str = "",
    ) -> RequestOutput:
        """As `LLM.beam_search`, of one prompt.  A cancel aborts the request."""
        options: dict[str, Any] = {"priority": priority, "tenant": tenant, "cache_salt": cache_salt}
        if request_id is not None:
            options["request_id"] = request_id
        request = await asyncio.to_thread(self._inputs.request, prompt, params, kind=BeamSearchParams, **options)
        return await self._whole(request)

    async def publish_prefix(self, prefix: PromptInput, *, name: str, tenants: Collection[str] | str | None = None) -> int:
        """As `LLM.publish_prefix`.  A cancel before the end publishes nothing."""
        readers = checked_tenants(tenants)
        request = await asyncio.to_thread(publication_request, self._inputs, prefix, name)
        message = partial(Publish, tenants=None if readers is None else sorted(readers))
        _raise_failed(await self._whole(request, message=message))
        size = self.memory_plan.block_size
        return len(request.prompt_token_ids) // size * size

    async def unpublish_prefix(self, name: str) -> bool:
        """As `LLM.unpublish_prefix`."""
        return bool(await self._client.ask(Unpublish(checked_name(name))))

    async def pin_prefix(
        self, prefix: PromptInput, *, name: str, ttl: float | None = None, tenant: str = "default", cache_salt: str = ""
    ) -> int:
        """As `LLM.pin_prefix`."""
        request = await asyncio.to_thread(pin_request, self._inputs, prefix, name, ttl, tenant, cache_salt)
        _raise_failed(await self._whole(request))
        return int(await self._client.ask(PinTokens(name, list(request.prompt_token_ids), tenant, cache_salt, ttl)))

    async def unpin_prefix(self, name: str) -> bool:
        """As `LLM.unpin_prefix`."""
        return bool(await self._client.ask(Unpin(checked_name(name))))

    async def pins(self) -> list[Pin]:
        """As `LLM.pins`."""
        return list(await self._client.ask(ListPins()))

    async def reset_prefix_cache(self) -> int:
        """As `LLM.reset_prefix_cache`."""
        return int(await self._client.ask(ResetCache()))

    async def _whole(self, request: Request, **more: Any) -> RequestOutput:
        collector = Collector(request)
        stream = self._client.stream(request, **more)
        try:
            async for delta in stream:
                collector.add(delta)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        return collector.output()

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


def _raise_failed(output: RequestOutput) -> None:
    for sample in output.outputs:
        if sample.finish_reason == "error":
            raise OctavoError(f"the prefix could not be computed: {sample.error}")
