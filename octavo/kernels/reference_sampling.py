"""The sampler's operations in plain numpy: the definition, the oracle of the compiled ones, and the fallback without them.

One row at a time in one thread (float64 inside), so the order of every sum is fixed by the vocabulary's size alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.params import GREEDY_BELOW
from octavo.kernels.sampling_ops import NO_TOKEN, Draw, RowLogprobs

Row = NDArray[np.float32]


class ReferenceSamplingOps:
    """`SamplingOps` in numpy.  Stateless."""

    def argmax_rows(self, logits: torch.Tensor) -> torch.Tensor:
        rows = _numpy(logits)
        # numpy's argmax gives the first maximum, and the first NaN where there is one.
        best = rows.argmax(axis=1).astype(np.int32)
        best[~np.isfinite(rows[np.arange(len(rows)), best])] = NO_TOKEN
        return torch.from_numpy(best)

    def top_logprobs_row(self, logits: torch.Tensor, k: int, token: int) -> RowLogprobs:
        row = _numpy(logits)
        normalizer = _logsumexp(row)
        value = row[token]
        rank = 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
        top = _largest(row, np.arange(len(row)), k)
        chosen, *others = (row[[token, *top]].astype(np.float64) - normalizer).astype(np.float32).tolist()
        return RowLogprobs(chosen, rank, top.tolist(), others)

    def draw_rows(self, rows: Sequence[torch.Tensor], draws: Sequence[Draw]) -> list[int]:
        return [self._draw(_numpy(row), *draw) for row, draw in zip(rows, draws, strict=True)]

    @staticmethod
    def _draw(row: Row, temperature: float, top_k: int, top_p: float, min_p: float, u: float) -> int:
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            return NO_TOKEN
        if temperature < GREEDY_BELOW:
            return best
        # The largest weight is exactly 1, so min_p compares with it directly and nothing overflows upwards.
        with np.errstate(over="ignore", under="ignore"):
            weights = np.exp((row.astype(np.float64) - np.float64(row[best])) / temperature)
        kept = np.flatnonzero((weights >= min_p) & (weights > 0.0))
        if 0 < top_k < len(kept):
            kept = np.sort(_largest(row, kept, top_k))
        if top_p < 1.0:
            kept = np.sort(_nucleus(row, weights, kept, top_p))
        running = np.cumsum(weights[kept])
        place = int(np.searchsorted(running, u * running[-1], side="right"))
        # u * total can round up to the total itself.
        return int(kept[min(place, len(kept) - 1)])


def _numpy(logits: torch.Tensor) -> Row:
    return logits.detach().cpu().numpy()


def _logsumexp(row: Row) -> float:
    top = np.float64(row.max())
    if not np.isfinite(top):
        return float(top)
    return float(top + np.log(np.exp(row.astype(np.float64) - top).sum()))


def _by_falling_logit(row: Row, ids: NDArray[np.intp]) -> NDArray[np.intp]:
    """`ids` (ascending) by falling logit; a stable sort leaves the lower id first among equals."""
    return ids[np.argsort(-row[ids], kind="stable")]


def _largest(row: Row, ids: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """The `k` of `ids` (ascending) with the largest logits, in falling order."""
    if k <= 0:
        return ids[:0]
    if k < len(ids):
        values = row[ids]
        threshold = np.partition(values, len(values) - k)[len(values) - k]
        ids = ids[values >= threshold]
    return _by_falling_logit(row, ids)[:k]


def _nucleus(row: Row, weights: NDArray[np.float64], ids: NDArray[np.intp], top_p: float) -> NDArray[np.intp]:
    """The shortest prefix of `ids` by falling logit that holds a share of at least `top_p` of their weight."""
    order = _by_falling_logit(row, ids)
    running = np.cumsum(weights[order])
    return order[: int(np.searchsorted(running, top_p * running[-1], side="left")) + 1]
