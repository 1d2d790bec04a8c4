"""Requests as the command line makes them."""

from collections.abc import Sequence
from typing import Any

from octavo.core.params import SamplingParams
from octavo.core.request import Request


def make_requests(llm: Any, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
    """Requests for `prompts`, all checked before any exists.  Raises InvalidRequestError naming the index."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    return list(llm.inputs.requests(prompts, each, [{} for _ in prompts]))
