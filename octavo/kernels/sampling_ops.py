"""The sampler's heavy operations: what it asks of a row of logits, whoever computes it.

`ReferenceSamplingOps` is the definition and the oracle; a compiled object has the same methods.  Every method obeys law 1: what it
returns for a row depends on that row's values (and its own arguments) alone, bit for bit, whatever rows stand beside it.

Rows are contiguous float32 tensors; -inf marks a token that must not be chosen.  Nothing here mutates its arguments.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

NO_TOKEN = -1


class RowLogprobs(NamedTuple):
    """What `top_logprobs_row` returns.

    logprob, rank: of the token asked for; rank 1 is the likeliest, and among equals the lower id ranks first.
    top_ids, top_logprobs: the k likeliest tokens in rank order (all of them when the vocabulary is smaller than k).
    Log-probabilities are float32 values: logit minus log-sum-exp, subtracted in float64 and rounded once.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class Draw(NamedTuple):
    """How one row is drawn from.  temperature, top_k, top_p, min_p: as in `core.params.SamplingParams`.  u: uniform, in [0, 1)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    u: float


class SamplingOps(Protocol):
    """Operations on logits.  See the module's docstring for dtypes and promises."""

    def argmax_rows(self, logits: torch.Tensor) -> torch.Tensor:
        """int32 [rows]: the id of each row's largest logit of `logits` [rows, vocab], the lowest id among equals.

        `NO_TOKEN` for a row that holds a NaN, and for one whose maximum isn't finite (all masked, or +inf).
        """
        ...

    def top_logprobs_row(self, logits: torch.Tensor, k: int, token: int) -> RowLogprobs:
        """The log-probability and rank of `token`, and the `k` >= 0 likeliest tokens of one row [vocab].

        The row holds no NaN, and its maximum is finite.
        """
        ...

    def draw_rows(self, rows: Sequence[torch.Tensor], draws: Sequence[Draw]) -> list[int]:
        """Draw one token of each of `rows` (each [vocab], already masked, biased and penalised) as the draw at its place says.

        In this order: weights w = exp((logit - max) / temperature); min_p keeps w >= min_p * max(w); top_k keeps the k largest
        logits of those (0 or less: all); top_p keeps the shortest prefix, by falling logit, whose share of the weight left is at
        least top_p (Holtzman et al. 2020, section 3.1); at least one token always stays.  Among equal logits the lower id is kept
        first.  Then the inverse CDF: the first kept token, in order of id, at which the running weight exceeds u times the total.

        A temperature below `core.params.GREEDY_BELOW` takes the largest logit.  A token of logit -inf, or whose weight is 0 in
        float64, is never drawn.  Gives `NO_TOKEN` under the conditions of `argmax_rows`.
        """
        ...
