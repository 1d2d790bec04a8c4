"""`ReferenceExecutor`: a program carried out operation by operation with the reference kernels."""

import time

import numpy as np
import torch

from octavo.core.errors import InvariantError
from octavo.kernels import reference
from octavo.kernels.executor import Batch
from octavo.kernels.program import AppendKV, Attention, Buffer, Embed, Experts, Linear, Matrix, Norm, Op, Program
from octavo.spec.memory import MemorySpec

KINDS = {Embed: "embed", Norm: "norm", Linear: "linear", Experts: "experts", AppendKV: "append_kv", Attention: "attention"}


class ReferenceExecutor:
    """Runs where no compiled kernel could be built, and is what the compiled ones are compared with.

    arena: uint8, contiguous, a whole number of blocks; written by `forward` and `copy_blocks`.
    max_tokens, max_logit_rows: the rows that the buffers hold.  threads: of torch (a setting of the whole process).
    Weights of 16 bits are widened to float32 once, here: twice their memory, and no rounding of its own.
    """

    name = "reference"

    def __init__(
        self, program: Program, memory_spec: MemorySpec, arena: torch.Tensor, *, max_tokens: int, max_logit_rows: int, threads: int
    ) -> None:
        if arena.dtype != torch.uint8 or not arena.is_contiguous() or arena.numel() % memory_spec.block_bytes:
            raise InvariantError(
                f"the arena must be contiguous bytes, a multiple of {memory_spec.block_bytes} (one block); "
                f"it is {arena.numel()} elements of {arena.dtype}"
            )
        torch.set_num_threads(threads)
        self._program = program
        self._blocks = arena.view(-1, memory_spec.block_bytes)
        self._block_size = memory_spec.block_size
        self._windows = [layer.window for layer in memory_spec.layers]
        self._layers = [reference.paged_layer(arena, memory_spec, i) for i in range(len(memory_spec.layers))]
        self._max_tokens, self._max_logit_rows = max_tokens, max_logit_rows
        self._buffers = self._allocate(program.buffers, max_tokens)
        self._head_buffers = self._allocate(program.head_buffers, max_logit_rows)
        self._weights: dict[int, torch.Tensor] = {}
        tables = [op.table for op in program.body if isinstance(op, Embed)]
        for matrix in (*tables, *program.matrices()):
            if id(matrix) not in self._weights:
                self._weights[id(matrix)] = matrix.read().float()
        self._seconds = dict.fromkeys([*KINDS.values(), "copy"], 0.0)
        self._batch: _Rows | None = None

    @torch.inference_mode()
    def forward(self, batch: Batch) -> None:
        rows = _Rows(batch, self._block_size)
        if rows.count > self._max_tokens:
            raise InvariantError(f"a step of {rows.count} tokens; the buffers were made for {self._max_tokens}")
        self._batch = rows
        self._run(self._program.body, _first_rows(self._buffers, self._program.buffers, rows.count))

    @torch.inference_mode()
    def logits(self, rows: np.ndarray) -> torch.Tensor:
        if len(rows) > self._max_logit_rows:
            raise InvariantError(f"logits of {len(rows)} rows; the buffers were made for {self._max_logit_rows}")
        buffers = _first_rows(self._head_buffers, self._program.head_buffers, len(rows))
        torch.index_select(self._buffers["hidden"], 0, torch.as_tensor(rows, dtype=torch.int64), out=buffers["hidden"])
        self._run(self._program.head, buffers)
        return buffers["logits"]

    @torch.inference_mode()
    def copy_blocks(self, pairs: np.ndarray) -> None:
        begin = time.perf_counter()
        source, destination = torch.as_tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
        self._blocks[destination] = self._blocks[source]
        self._seconds["copy"] += time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def weight_bytes(self) -> int:
        others: list[torch.Tensor | None] = []
        for op in self._program.body + self._program.head:
            match op:
                case Embed():
                    others.append(op.positions)
                case Norm():
                    others += [op.weight, op.bias]
                case Linear():
                    others.append(op.bias)
                case AppendKV():
                    others += [op.q_norm, op.k_norm, *((op.rope.cos, op.rope.sin) if op.rope else ())]
        weights = [*self._weights.values(), *(tensor for tensor in others if tensor is not None)]
        return sum({weight.data_ptr(): weight.nbytes for weight in weights}.values())

    def workspace_bytes(self) -> int:
        return sum(buffer.nbytes for buffers in (self._buffers, self._head_buffers) for buffer in buffers.values())

    def _allocate(self, buffers: tuple[Buffer, ...], rows: int) -> dict[str, torch.Tensor]:
        dtypes = {"float32": torch.float32, "compute": self._program.compute_dtype}
        return {buffer.name: torch.zeros(rows * buffer.rows, buffer.width, dtype=dtypes[buffer.kind]) for buffer in buffers}

    def _run(self, ops: tuple[Op, ...], buffers: dict[str, torch.Tensor]) -> None:
        for op in ops:
            begin = time.perf_counter()
            match op:
                case Embed():
                    self._embed(op, buffers)
                case Norm():
                    self._norm(op, buffers)
                case Linear():
                    self._linear(op, buffers)
                case Experts():
                    self._experts(op, buffers)
                case AppendKV():
                    self._append_kv(op, buffers)
                case Attention():
                    self._attention(op, buffers)
            self._seconds[KINDS[type(op)]] += time.perf_counter() - begin

    def _weight(self, matrix: Matrix) -> torch.Tensor:
        return self._weights[id(matrix)]

    def _step(self) -> "_Rows":
        if self._batch is None:
            raise InvariantError("the body ran without a batch")
        return self._batch

    def _embed(self, op: Embed, buffers: dict[str, torch.Tensor]) -> None:
        step = self._step()
        table = self._weight(op.table)
        buffers[op.out].copy_(
            reference.embed(step.token_ids, step.positions, table, scale=op.scale, learned=op.positions, offset=op.position_offset)
        )

    def _norm(self, op: Norm, buffers: dict[str, torch.Tensor]) -> None:
        x = buffers[op.x]
        rms = op.kind == "rms"
        buffers[op.out].copy_(reference.rms_norm(x, op.weight, op.eps) if rms else reference.layer_norm(x, op.weight, op.bias, op.eps))

    def _linear(self, op: Linear, buffers: dict[str, torch.Tensor]) -> None:
        product = reference.linear(buffers[op.x], self._weight(op.matrix), op.bias, op.activation, gated=op.matrix.gated)
        if op.accumulate:
            buffers[op.out].add_(product)
        else:
            buffers[op.out].copy_(product)

    def _experts(self, op: Experts, buffers: dict[str, torch.Tensor]) -> None:
        up, down = ([self._weight(matrix) for matrix in matrices] for matrices in (op.up, op.down))
        sums = reference.experts(
            buffers[op.x], buffers[op.scores], up, down, top_k=op.top_k, normalize=op.normalize, activation=op.activation
        )
        buffers[op.out].add_(sums)

    def _append_kv(self, op: AppendKV, buffers: dict[str, torch.Tensor]) -> None:
        step, layer = self._step(), self._layers[op.layer]
        kv_heads, head_dim = layer.values.shape[4:]
        q, k, v = buffers[op.qkv].view(step.count, -1, head_dim).split([op.num_heads, kv_heads, kv_heads], dim=1)
        if op.q_norm is not None:
            q = reference.rms_norm(q, op.q_norm, op.eps)
        if op.k_norm is not None:
            k = reference.rms_norm(k, op.k_norm, op.eps)
        if op.rope is not None:
            q, k = reference.rotate(q, step.positions, op.rope), reference.rotate(k, step.positions, op.rope)
        buffers[op.q].copy_(q.flatten(1))
        kept = step.written
        reference.write_kv(layer, step.blocks[kept], step.positions[kept], k[kept], v[kept])

    def _attention(self, op: Attention, buffers: dict[str, torch.Tensor]) -> None:
        step, layer, window = self._step(), self._layers[op.layer], self._windows[op.layer]
        q = buffers[op.q].float().view(step.count, op.num_heads, -1)
        for seq, (low, high, start) in enumerate(step.sequences):
            k_start = 0 if window is None else max(0, start - window + 1)
            seen = torch.arange(k_start, start + high - low)
            k, v = reference.read_kv(layer, step.blocks_of(seq, seen), seen)
            out = reference.attention(q[low:high], k, v, q_start=start, k_start=k_start, scale=op.scale, window=window)
            buffers[op.out][low:high].copy_(out.flatten(1))


def _first_rows(tensors: dict[str, torch.Tensor], buffers: tuple[Buffer, ...], count: int) -> dict[str, torch.Tensor]:
    """What `count` tokens take of each buffer."""
    return {buffer.name: tensors[buffer.name][: count * buffer.rows] for buffer in buffers}


class _Rows:
    """A batch row by row: each token's position, its block, and whether its K and V are written."""

    def __init__(self, batch: Batch, block_size: int) -> None:
        self._block_size = block_size
        self._contiguous = batch.contiguous
        self._tables = [torch.as_tensor(batch.tables[row], dtype=torch.int64) for row in batch.row]
        self.count = int(batch.q_start[-1])
        self.token_ids = torch.as_tensor(batch.token_ids, dtype=torch.int64)
        bounds = zip(batch.q_start[:-1], batch.q_start[1:], batch.start, strict=True)
        self.sequences = [(int(low), int(high), int(start)) for low, high, start in bounds]
        lengths = torch.as_tensor(np.diff(batch.q_start), dtype=torch.int64)
        positions = [torch.arange(start, start + high - low) for low, high, start in self.sequences]
        self.positions = torch.cat(positions) if positions else torch.empty(0, dtype=torch.int64)
        blocks = [self.blocks_of(seq, rows) if batch.write[seq] else torch.full_like(rows, -1) for seq, rows in enumerate(positions)]
        self.blocks = torch.cat(blocks) if blocks else self.positions
        self.written = torch.as_tensor(batch.write, dtype=torch.bool).repeat_interleave(lengths)

    def blocks_of(self, seq: int, positions: torch.Tensor) -> torch.Tensor:
        """Block ids of these positions of a sequence."""
        index = positions // self._block_size
        return self._tables[seq][0] + index if self._contiguous else self._tables[seq][index]
