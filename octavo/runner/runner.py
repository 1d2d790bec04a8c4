"""`Runner`, the doing side's interface, and `TorchRunner`, which does a `StepPlan` on the tensors of one model."""

import statistics
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from octavo.core.errors import OctavoError
from octavo.core.plan import Sample, StepPlan, StepResult, TokenLogprobs
from octavo.kernels.executor import Batch, Executor
from octavo.runner.batching import BlockTables, LogitRows, build_batch, logit_rows
from octavo.sampling.sampler import Sampler


class Runner(Protocol):
    """Carries out plans.  A step can be repeated: after an exception the same work may come again under a later plan."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Do the whole plan.  Raises whatever the machine raises (MemoryError, RuntimeError); then nothing of it counts."""

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, by part."""


class ClosedRunner:
    """Stands where a runner stood whose engine was closed."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises OctavoError."""
        raise OctavoError("the engine is closed; make a new one")

    def seconds(self) -> dict[str, float]:
        """Nothing is left to count."""
        return {}


class TorchRunner:
    """Runs plans through an `Executor` and a `Sampler`.  One thread steps; nothing here is thread-safe.

    max_logit_rows: rows of logits that exist at once; a step that needs more takes them in turns.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        *,
        max_num_seqs: int,
        max_blocks_per_seq: int,
        max_logit_rows: int,
        contiguous: bool = False,
    ) -> None:
        self.executor = executor
        self.sampler = sampler
        self._tables = BlockTables(max_num_seqs, max_blocks_per_seq)
        self._prompts: dict[int, _Scored] = {}
        self._max_logit_rows = max_logit_rows
        self._contiguous = contiguous
        self._sampling_seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Runner`.  Order: forget, enter, copy, compute, sample."""
        begin = time.perf_counter()
        self._enter(plan)
        if copies := plan.copies:
            self.executor.copy_blocks(np.array(copies, dtype=np.int32))
        if not plan.chunks:
            return StepResult({}, time.perf_counter() - begin)
        batch = build_batch(plan, self._tables, contiguous=self._contiguous)
        self.executor.forward(batch)
        samples, prompts, failed = self._sample(plan, logit_rows(plan, batch, {k: v.tokens for k, v in self._prompts.items()}))
        self.sampler.record(samples)
        return StepResult(samples, time.perf_counter() - begin, prompts, failed)

    def seconds(self) -> dict[str, float]:
        return {**self.executor.seconds(), "sampling": self._sampling_seconds}

    def _enter(self, plan: StepPlan) -> None:
        for seq_id in plan.released:
            self._tables.release(seq_id)
            self.sampler.release(seq_id)
            self._prompts.pop(seq_id, None)
        for start in plan.started:
            self._tables.start(start.seq_id)
            self.sampler.start(start)
            if start.params.prompt_logprobs is not None:
                self._prompts[start.seq_id] = _Scored(start.tokens, start.params.prompt_logprobs)

    def _sample(
        self, plan: StepPlan, wanted: LogitRows
    ) -> tuple[dict[int, Sample], dict[int, tuple[TokenLogprobs, ...]], dict[int, str]]:
        samples: dict[int, Sample] = {}
        scored: dict[int, list[TokenLogprobs]] = {}
        failed: dict[int, str] = {}
        for begin in range(0, len(wanted.owners), self._max_logit_rows):
            part = slice(begin, begin + self._max_logit_rows)
            logits = self.executor.logits(wanted.rows[part])
            clock = time.perf_counter()
            seq_ids = [plan.chunks[owner].seq_id for owner in wanted.owners[part]]
            targets = wanted.targets[part]
            drawing = [i for i, target in enumerate(targets) if target < 0]
            for i, target in enumerate(targets):
                if target >= 0:
                    scored.setdefault(seq_ids[i], []).append(self._score(seq_ids[i], logits[i : i + 1], target))
            if drawing:
                drawn = self.sampler.sample([seq_ids[i] for i in drawing], logits if len(drawing) == len(targets) else logits[drawing])
                samples.update(drawn.samples)
                failed.update(drawn.failed)
            self._sampling_seconds += time.perf_counter() - clock
        return samples, {seq_id: tuple(entries) for seq_id, entries in scored.items()}, failed

    def _score(self, seq_id: int, logits: torch.Tensor, target: int) -> TokenLogprobs:
        return self.sampler.prompt_logprobs(logits, [target], self._prompts[seq_id].k)[0]


@dataclass(frozen=True, slots=True)
class _Scored:
    """A prompt that owes logprobs: its ids and how many alternatives each position reports."""

    tokens: tuple[int, ...]
    k: int


def warm_up(executor: Executor, max_tokens: int) -> None:
    """Touch the workspaces and start the compute threads, so that the first request doesn't pay for it.

    Runs `max_tokens` sequences of one query-only row over block 0: the cache is read (whatever it holds) and never written.
    """
    zeros = np.zeros(max_tokens, dtype=np.int32)
    executor.forward(
        Batch(
            token_ids=zeros,
            q_start=np.arange(max_tokens + 1, dtype=np.int32),
            start=zeros,
            write=np.zeros(max_tokens, dtype=np.uint8),
            row=zeros,
            tables=np.zeros((1, 1), dtype=np.int32),
        )
    )
    executor.logits(np.zeros(1, dtype=np.int32))


def copy_seconds(executor: Executor, num_blocks: int) -> float:
    """What copying one block takes: the median of a few copies inside the cache, before anything is in it.  0.0 when there is but
    one.
    """
    if num_blocks < 2:
        return 0.0
    pairs = np.array([[0, 1]], dtype=np.int32)
    timed = []
    for _ in range(5):
        begin = time.perf_counter()
        executor.copy_blocks(pairs)
        timed.append(time.perf_counter() - begin)
    return statistics.median(timed)
