"""The interface between the runner and whatever carries a `Program` out, and the batch that passes through it."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(slots=True)
class Batch:
    """One ragged step.  Sequence s owns rows q_start[s] to q_start[s + 1], at positions start[s], start[s] + 1, ...

    token_ids: int32 [num_tokens].  q_start: int32 [num_seqs + 1].  start: int32 [num_seqs].  write: uint8 [num_seqs]; 0 leaves the
    cache as it is (query-only rows).  row: int32 [num_seqs], the sequence's row in `tables`: int32 [rows, max_blocks] block ids.
    contiguous: only the first entry of a row is read; the sequence's blocks follow each other in the arena.
    """

    token_ids: np.ndarray
    q_start: np.ndarray
    start: np.ndarray
    write: np.ndarray
    row: np.ndarray
    tables: np.ndarray
    contiguous: bool = False


class Executor(Protocol):
    """Carries out one model's program over one arena.  Not thread-safe: one thread loads, warms up and steps."""

    name: str  # which kernels: "reference", or the instruction path ("avx512_bf16", "avx512", "avx2", "portable")

    def forward(self, batch: Batch) -> None:
        """Run the body: writes K and V of the batch's tokens, leaves their hidden rows for `logits`."""

    def logits(self, rows: np.ndarray) -> torch.Tensor:
        """Run the head for these rows of the last batch (int32).  float32 [len(rows), vocab]; valid until the next call."""

    def copy_blocks(self, pairs: np.ndarray) -> None:
        """Copy whole blocks: int32 [n, 2] of (source, destination).  No destination is also a source."""

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far by kind: "linear", "experts", "attention", "append_kv", "norm", "embed", "copy"."""

    def weight_bytes(self) -> int:
        """Bytes of the weights as the kernels hold them: matrices, tables, norms, biases."""

    def workspace_bytes(self) -> int:
        """Bytes of the buffers for the token budget, as `workspace_bytes_for` counts them."""
