"""Stepping an `LLM`'s engine from the command line, with a look in between each two steps."""

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.core.request import Request


def make_requests(llm: Any, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
    """Requests for `prompts`, all checked before any exists.  Raises InvalidRequestError naming the index."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    return list(llm.inputs.requests(prompts, each, [{} for _ in prompts]))


def steps(llm: Any, requests: Sequence[Request]) -> Iterator[list[RequestOutput]]:
    """Queue `requests`, then yield each step's deltas until all have ended.  Leaving early aborts the rest and frees their memory."""
    waiting = {request.request_id for request in requests}
    try:
        for request in requests:
            llm.engine.add_request(request)
        while waiting and llm.engine.has_work:
            outputs = llm.engine.step()
            waiting.difference_update(output.request_id for output in outputs if output.finished)
            yield outputs
    finally:
        for request_id in waiting:
            llm.engine.abort(request_id)
