"""`NativeSamplingOps`: the sampler's operations by the compiled kernels, rows shared out among threads."""

from collections.abc import Sequence

import torch

from octavo.core.errors import ConfigError, InvariantError
from octavo.core.params import GREEDY_BELOW
from octavo.kernels.availability import native_kernels
from octavo.kernels.sampling_ops import RowLogprobs


class NativeSamplingOps:
    """`SamplingOps` in C++.  A row's result depends on that row alone, and is one thread's work.

    Exponentials are float32 here (relative error below 3e-7), their sums float64: where the running weight passes a draw's target by
    less than that, the neighbouring token may come out than with the reference.
    path: an instruction path to force; None takes the best.  Only one thread may use an object.
    Raises ConfigError without compiled kernels or for a path that isn't here, InvariantError for rows of another dtype or layout.
    """

    def __init__(self, threads: int, path: str | None = None) -> None:
        found = native_kernels()
        if found.module is None:
            raise ConfigError(f"this installation has no compiled kernels: {found.reason}")
        try:
            self._native = found.module.Sampling(path or "", threads)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def argmax_rows(self, logits: torch.Tensor) -> torch.Tensor:
        _check(logits, 2)
        return torch.tensor(self._native.argmax(logits.data_ptr(), *logits.shape), dtype=torch.int32)

    def logsumexp_row(self, logits: torch.Tensor) -> float:
        _check(logits, 1)
        return float(self._native.logsumexp(logits.data_ptr(), len(logits)))

    def top_logprobs_row(self, logits: torch.Tensor, k: int, token: int) -> RowLogprobs:
        _check(logits, 1)
        if not 0 <= token < len(logits):
            raise InvariantError(f"token {token} isn't in a row of {len(logits)} logits")
        return RowLogprobs(*self._native.top_logprobs(logits.data_ptr(), len(logits), min(k, len(logits)), token))

    def draw_row(self, logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, u: float) -> int:
        return self.draw_rows([logits], [temperature], [top_k], [top_p], [min_p], [u])[0]

    def draw_rows(
        self,
        rows: Sequence[torch.Tensor],
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
        u: Sequence[float],
    ) -> list[int]:
        """`draw_row` for each of `rows` (each [vocab], not necessarily of one tensor) with its own parameters, on all threads."""
        for row in rows:
            _check(row, 1)
            if len(row) != len(rows[0]):
                raise InvariantError(f"rows of {len(row)} and {len(rows[0])} logits in one draw")
        if not rows:
            return []
        # A greedy row is the limit of a falling temperature: the first of the order, whatever u is.
        greedy = [value < GREEDY_BELOW for value in temperature]
        drawn: list[int] = self._native.draw(
            [row.data_ptr() for row in rows],
            len(rows[0]),
            [1.0 if is_greedy else value for is_greedy, value in zip(greedy, temperature, strict=True)],
            [1 if is_greedy else k for is_greedy, k in zip(greedy, top_k, strict=True)],
            list(top_p),
            list(min_p),
            list(u),
        )
        return drawn


def _check(logits: torch.Tensor, dim: int) -> None:
    if logits.dtype != torch.float32 or logits.dim() != dim or not logits.is_contiguous() or logits.device.type != "cpu":
        raise InvariantError(
            f"logits must be {dim}-dimensional, contiguous float32 on the CPU; "
            f"these are {tuple(logits.shape)} {logits.dtype} on {logits.device}"
        )
