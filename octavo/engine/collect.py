"""From the deltas of a request to its whole output."""

from octavo.core.outputs import CacheReport, CompletionOutput, FinishReason, RequestOutput
from octavo.core.plan import TokenLogprobs
from octavo.core.request import Request


class _Sample:
    """What one sample has given so far."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.last: CompletionOutput | None = None

    def add(self, delta: CompletionOutput) -> None:
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs or ())
        self.last = delta


class Collector:
    """Joins one request's deltas.  `output()` at any moment is what has come so far; a request that never ran gives empty samples."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._samples = [_Sample() for _ in range(request.params.n)]
        self._cache: CacheReport | None = None
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.finished = False

    def add(self, delta: RequestOutput) -> None:
        """Take one delta in.  Mutates."""
        for output in delta.outputs:
            self._samples[output.index].add(output)
        self._cache = self._cache or delta.cache
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        self.finished = self.finished or delta.finished

    def output(self, *, unfinished: FinishReason | None = None) -> RequestOutput:
        """The whole so far; samples that have not ended get the finish reason `unfinished`."""
        request = self._request
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(self._completion(index, sample, unfinished) for index, sample in enumerate(self._samples)),
            finished=self.finished,
            num_cached_tokens=0 if self._cache is None else self._cache.num_tokens,
            cache=self._cache,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _completion(self, index: int, sample: _Sample, unfinished: FinishReason | None) -> CompletionOutput:
        last = sample.last
        # Of a beam search, the params ask for what the search needs, and the result has none.
        wants_logprobs = self._request.params.logprobs is not None and self._request.beam is None
        return CompletionOutput(
            index=index,
            text="".join(sample.text),
            token_ids=tuple(sample.token_ids),
            logprobs=tuple(sample.logprobs) if wants_logprobs else None,
            seed=self._request.seed,
            finish_reason=(last.finish_reason if last is not None else None) or unfinished,
            stop_reason=last.stop_reason if last is not None else None,
            error=last.error if last is not None else None,
            cumulative_logprob=last.cumulative_logprob if last is not None else None,
            score=last.score if last is not None else None,
        )
