"""Running programs in tests: a driver that keeps block tables and feeds an executor chunk by chunk, and a way to make executors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from octavo.kernels.executor import Batch, Executor
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.models.load import LoadedModel
from octavo.spec.memory import MemorySpec

MakeExecutor = Callable[..., Executor]


class Driver:
    """One executor over a pool of its own, poisoned with NaN; sequences take shuffled blocks as they grow.

    make: called as an executor's class is (the reference one by default).
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        block_size: int = 16,
        num_blocks: int = 64,
        max_tokens: int = 512,
        kv_dtype: str | None = None,
        make: MakeExecutor = ReferenceExecutor,
        **options: Any,
    ) -> None:
        self.spec = MemorySpec(model.memory_layers, kv_dtype or model.dtype, block_size)
        self.arena = torch.full((num_blocks * self.spec.block_bytes,), 255, dtype=torch.uint8)
        self.executor = make(
            model.program, self.spec, self.arena, max_tokens=max_tokens, max_logit_rows=max_tokens, threads=1, **options
        )
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5)).tolist()
        self._free: list[int] = order
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(self, chunks: dict[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Compute these ids after those that each sequence has; float32 logits [len(ids), vocab] of each."""
        starts = [self._lengths.get(seq, 0) for seq in chunks]
        for seq, ids in chunks.items():
            table = self._tables.setdefault(seq, [])
            self._lengths[seq] = self._lengths.get(seq, 0) + len(ids)
            while len(table) < self.spec.blocks_for(self._lengths[seq]):
                table.append(self._free.pop())
        return self.compute(chunks, starts, write=True)

    def compute(self, chunks: dict[int, Sequence[int]], starts: Sequence[int], *, write: bool) -> dict[int, torch.Tensor]:
        """The rows of these ids at these starts, as they are in the tables."""
        tables = [self._tables[seq] for seq in chunks]
        bounds = np.cumsum([0, *map(len, chunks.values())], dtype=np.int32)
        padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        batch = Batch(
            token_ids=np.array([token for ids in chunks.values() for token in ids], dtype=np.int32),
            q_start=bounds,
            start=np.array(starts, dtype=np.int32),
            write=np.full(len(tables), write, dtype=np.uint8),
            row=np.arange(len(tables), dtype=np.int32),
            tables=padded,
        )
        self.executor.forward(batch)
        logits = self.executor.logits(np.arange(bounds[-1], dtype=np.int32))
        return {seq: logits[low:high].clone() for seq, low, high in zip(chunks, bounds[:-1], bounds[1:], strict=True)}

    def forget(self, seq: int) -> None:
        """Give the blocks of a sequence back."""
        self._free += self._tables.pop(seq)
        del self._lengths[seq]

    def table(self, seq: int) -> list[int]:
        return self._tables[seq]


def assert_logits_close(got: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """|got - expected| <= tolerance * max(1, |expected|) everywhere."""
    excess = ((got - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert excess <= tolerance, f"logits differ by {excess:.3g} of max(1, |logit|); {tolerance} is allowed"
