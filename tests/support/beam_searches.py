"""Beam searches to test, and the candidates that they take."""

from typing import Any, Literal

import torch

from octavo.core.params import BeamSearchParams
from octavo.scheduler.beams import BeamSearch

Early = bool | Literal["never"]
Candidates = list[tuple[int, float]]


def new_search(width: int, stops: tuple[int, ...], max_tokens: int = 12, **params: Any) -> BeamSearch:
    return BeamSearch(BeamSearchParams(beam_width=width, max_tokens=max_tokens, **params), max_tokens, frozenset(stops))


def likeliest(row: torch.Tensor, count: int) -> Candidates:
    """The `count` likeliest (id, log-probability) of a row of log-softmax, equal ones by the lower id."""
    order = torch.argsort(row, descending=True, stable=True)[:count]
    return list(zip(order.tolist(), row[order].tolist(), strict=True))
