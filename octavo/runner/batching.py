"""From the chunks of a plan to the arrays of a `Batch`: block tables, ragged rows, and which rows need logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.core.plan import Chunk, StepPlan
from octavo.kernels.executor import Batch


class BlockTables:
    """A row of block ids per running sequence, kept from step to step: a step writes only what grew.

    tables: int32 [max_num_seqs, max_blocks].  A chunk says where its new blocks stand in the row, so that it may come again (a step
        that
    failed is planned anew) and may replace a block by a copy of it.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self.tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self._rows: dict[int, int] = {}

    def start(self, seq_id: int) -> None:
        if seq_id not in self._rows:
            self._rows[seq_id] = self._free.pop()

    def release(self, seq_id: int) -> None:
        if (row := self._rows.pop(seq_id, None)) is not None:
            self._free.append(row)

    def row(self, chunk: Chunk) -> int:
        """The chunk's row, its new blocks written into it."""
        row = self._rows[chunk.seq_id]
        if chunk.new_blocks:
            self.tables[row, chunk.first_block : chunk.first_block + len(chunk.new_blocks)] = chunk.new_blocks
        return row

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(slots=True)
class LogitRows:
    """Rows of the batch that need logits, in batch order.

    rows: int32 [n].  owners: for each row its chunk's index; a row owed to a prompt logprob carries the prompt token that it
    scores in `targets` (-1: the row samples).
    """

    rows: np.ndarray
    owners: list[int]
    targets: list[int]


def build_batch(plan: StepPlan, tables: BlockTables, *, contiguous: bool) -> Batch:
    """Lay out the plan's chunks one behind the other.  Mutates `tables`."""
    chunks = plan.chunks
    token_ids: list[int] = []
    q_start = [0]
    for chunk in chunks:
        token_ids.extend(chunk.tokens)
        q_start.append(len(token_ids))
    return Batch(
        token_ids=np.array(token_ids, dtype=np.int32),
        q_start=np.array(q_start, dtype=np.int32),
        start=np.array([chunk.start for chunk in chunks], dtype=np.int32),
        write=np.array([chunk.write for chunk in chunks], dtype=np.uint8),
        row=np.array([tables.row(chunk) for chunk in chunks], dtype=np.int32),
        tables=tables.tables,
        contiguous=contiguous,
    )


def logit_rows(plan: StepPlan, batch: Batch, prompts: Mapping[int, Sequence[int]]) -> LogitRows:
    """Which rows need logits: the leading rows that owe a prompt logprob, and the last row of a chunk that samples.

    prompts: the ids of each sequence that owes prompt logprobs.
    """
    rows: list[int] = []
    owners: list[int] = []
    targets: list[int] = []
    for index, chunk in enumerate(plan.chunks):
        first = int(batch.q_start[index])
        for offset in range(chunk.prompt_rows):
            rows.append(first + offset)
            owners.append(index)
            targets.append(prompts[chunk.seq_id][chunk.start + offset + 1])
        if chunk.sample:
            rows.append(first + len(chunk.tokens) - 1)
            owners.append(index)
            targets.append(-1)
    return LogitRows(np.array(rows, dtype=np.int32), owners, targets)
