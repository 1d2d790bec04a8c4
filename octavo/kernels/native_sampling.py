"""`NativeSamplingOps`: the sampler's operations by the compiled kernels, rows shared out among threads."""

from collections.abc import Sequence

import torch

from octavo.core.errors import ConfigError, InvariantError
from octavo.core.params import GREEDY_BELOW
from octavo.kernels.availability import native_kernels
from octavo.kernels.native import choose_path
from octavo.kernels.sampling_ops import Draw, RowLogprobs


class NativeSamplingOps:
    """`SamplingOps` in C++.  A row's result depends on that row alone, and is one thread's work.

    Exponentials are float32 here (relative error below 3e-7), their sums float64: where the running weight passes a draw's target by
    less than that, the neighbouring token may come out than with the reference.
    path: an instruction path to force; None takes the best.  name: the one in use.  Only one thread may use an object.
    Raises ConfigError without compiled kernels or for a path that isn't here, InvariantError for rows of another dtype or layout.
    """

    def __init__(self, threads: int, path: str | None = None) -> None:
        found = native_kernels()
        if found.module is None:
            raise ConfigError(f"this installation has no compiled kernels: {found.reason}")
        self.name = choose_path(found.module, path)
        self._native = found.module.Sampling(self.name, threads)

    def argmax_rows(self, logits: torch.Tensor) -> torch.Tensor:
        _check(logits, 2)
        return torch.tensor(self._native.argmax(logits.data_ptr(), *logits.shape), dtype=torch.int32)

    def top_logprobs_row(self, logits: torch.Tensor, k: int, token: int) -> RowLogprobs:
        _check(logits, 1)
        if not 0 <= token < len(logits):
            raise InvariantError(f"token {token} isn't in a row of {len(logits)} logits")
        return RowLogprobs(*self._native.top_logprobs(logits.data_ptr(), len(logits), min(k, len(logits)), token))

    def draw_rows(self, rows: Sequence[torch.Tensor], draws: Sequence[Draw]) -> list[int]:
        """Rows need not be of one tensor; they are shared out among all threads."""
        for row in rows:
            _check(row, 1)
            if len(row) != len(rows[0]):
                raise InvariantError(f"rows of {len(row)} and {len(rows[0])} logits in one draw")
        if not rows:
            return []
        # A greedy row is the limit of a falling temperature: the first of the order, whatever u is.
        draws = [draw._replace(temperature=1.0, top_k=1) if draw.temperature < GREEDY_BELOW else draw for draw in draws]
        temperature, top_k, top_p, min_p, u = (list(column) for column in zip(*draws, strict=True))
        drawn: list[int] = self._native.draw([row.data_ptr() for row in rows], len(rows[0]), temperature, top_k, top_p, min_p, u)
        return drawn


def _check(logits: torch.Tensor, dim: int) -> None:
    if logits.dtype != torch.float32 or logits.dim() != dim or not logits.is_contiguous() or logits.device.type != "cpu":
        raise InvariantError(
            f"logits must be {dim}-dimensional, contiguous float32 on the CPU; "
            f"these are {tuple(logits.shape)} {logits.dtype} on {logits.device}"
        )
