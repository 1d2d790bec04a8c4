"""`OutputProcessor`: from the scheduler's tokens to the text that a client sees, and the stop strings found in it."""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.core.errors import InvariantError
from octavo.core.outputs import CacheReport, CompletionOutput, FinishReason, RequestOutput
from octavo.core.plan import TokenLogprobs
from octavo.core.request import Request
from octavo.engine.ranking import BestOf
from octavo.scheduler.updates import SequenceUpdate
from octavo.text.output_text import OutputText
from octavo.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Running:
    request: Request
    texts: list[OutputText]
    prompt_logprobs: list[TokenLogprobs | None] | None
    best_of: BestOf | None
    open: set[int]


@dataclass(frozen=True, slots=True)
class StringStop:
    """A stop string was found: this sequence is to be finished."""

    seq_id: int
    stop: str


class OutputProcessor:
    """Keeps the text state of every request in the engine.  Text that might be the head of a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._running: dict[str, _Running] = {}

    def add(self, request: Request) -> None:
        params = request.params
        self._running[request.request_id] = _Running(
            request,
            [OutputText(self._tokenizer, request.prompt_token_ids, params) for _ in range(params.num_samples)],
            None if params.prompt_logprobs is None else [None],
            BestOf(params.num_samples, params.n, params.logprobs is not None) if params.chooses else None,
            set(range(params.num_samples)),
        )

    def discard(self, request_id: str) -> None:
        """Forget a request; what its sequences still bring is dropped."""
        self._running.pop(request_id, None)

    def process(self, updates: Iterable[SequenceUpdate]) -> tuple[list[RequestOutput], list[StringStop]]:
        """Turn one step's updates into deltas, one per request that moved.  Mutates the text state; ended requests are forgotten."""
        deltas: dict[str, list[CompletionOutput]] = {}
        stops: list[StringStop] = []
        caches: dict[str, CacheReport | None] = {}
        for update in updates:
            running = self._running.get(update.request_id)
            if running is None or update.sample_index not in running.open:
                continue
            if update.prompt_logprobs and running.prompt_logprobs is not None and update.sample_index == 0:
                running.prompt_logprobs.extend(update.prompt_logprobs)
            if update.token_id is None and update.finish_reason is None:
                continue
            output, stop = self._advance(running, update)
            if stop is not None:
                stops.append(stop)
            if output.finish_reason is not None:
                running.open.discard(update.sample_index)
            caches.setdefault(update.request_id, update.cache)
            if running.best_of is None:
                deltas.setdefault(update.request_id, []).append(output)
                continue
            running.best_of.add(output)
            if not running.open:
                deltas[update.request_id] = running.best_of.ranked()
        return [self._output(request_id, outputs, caches[request_id]) for request_id, outputs in deltas.items()], stops

    def _advance(self, running: _Running, update: SequenceUpdate) -> tuple[CompletionOutput, StringStop | None]:
        text = running.texts[update.sample_index]
        finish: FinishReason | None = update.finish_reason
        if update.hypothesis is not None:
            return _beam(running.request, text, update), None
        new = ""
        # The id that ends an output (EOS or a stop token) is in token_ids; its spelling is left out of the text, as vLLM does.
        if update.token_id is not None and (finish != "stop" or running.request.params.include_stop_str_in_output):
            new = text.push((update.token_id,))
        if finish is not None:
            new += text.finish()
        found = text.stop_reason
        completion = CompletionOutput(
            index=update.sample_index,
            text=new,
            token_ids=() if update.token_id is None else (update.token_id,),
            logprobs=None if update.logprobs is None else (update.logprobs,),
            seed=running.request.seed,
            finish_reason=finish if found is None else "stop",
            stop_reason=update.stop_reason if found is None else found,
            error=update.error,
        )
        return completion, None if found is None or finish is not None else StringStop(update.seq_id, found)

    def _output(self, request_id: str, outputs: list[CompletionOutput], cache: CacheReport | None) -> RequestOutput:
        running = self._running[request_id]
        finished = not running.open
        if finished:
            del self._running[request_id]
        return RequestOutput(
            request_id=request_id,
            prompt=running.request.prompt,
            prompt_token_ids=running.request.prompt_token_ids,
            outputs=tuple(outputs),
            finished=finished,
            num_cached_tokens=0 if cache is None else cache.num_tokens,
            cache=cache,
            prompt_logprobs=None if running.prompt_logprobs is None or not finished else tuple(running.prompt_logprobs),
        )


def _beam(request: Request, text: OutputText, update: SequenceUpdate) -> CompletionOutput:
    """A beam search's result comes whole."""
    hypothesis = update.hypothesis
    if hypothesis is None:
        raise InvariantError(f"sequence {update.seq_id} brought no hypothesis")
    tokens = hypothesis.token_ids
    spelled = tokens if hypothesis.finish_reason == "length" or request.params.include_stop_str_in_output else tokens[:-1]
    last = tokens[-1]
    named_by_caller = hypothesis.finish_reason == "stop" and last in (request.params.stop_token_ids or ())
    return CompletionOutput(
        index=update.sample_index,
        text=text.push(spelled) + text.finish(),
        token_ids=tokens,
        logprobs=None,
        seed=request.seed,
        finish_reason=hypothesis.finish_reason,
        stop_reason=last if named_by_caller else None,
        cumulative_logprob=hypothesis.cumulative_logprob,
        score=hypothesis.score,
    )
