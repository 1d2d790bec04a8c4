"""Binding a `Program` to the compiled kernels: every shape is checked here, once, because beyond it there are only addresses."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from octavo.core.errors import InvariantError
from octavo.kernels.program import AppendKV, Attention, Buffer, Embed, Experts, Linear, Matrix, Norm, Op, Program
from octavo.kernels.sizes import row_bytes
from octavo.spec.memory import PAGE_TOKENS, MemorySpec

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(slots=True)
class Bound:
    """A bound program and all that it points to.

    packed: the memory of the products' weights.  logits: the head's float32 rows.  weights: those that no product uses (tables, norms,
    biases); one that several operations use may be in there several times.
    """

    native: Any
    packed: Any
    logits: torch.Tensor
    buffers: list[torch.Tensor]
    weights: list[torch.Tensor]
    arena: torch.Tensor

    @property
    def weight_bytes(self) -> int:
        loose = {weight.data_ptr(): weight.nbytes for weight in self.weights}
        return int(self.packed.bytes) + sum(loose.values())

    @property
    def workspace_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers) + int(self.native.scratch_bytes())


def bind(
    module: ModuleType,
    program: Program,
    spec: MemorySpec,
    arena: torch.Tensor,
    *,
    max_tokens: int,
    max_logit_rows: int,
    threads: int,
    path: str,
) -> Bound:
    """Allocate the buffers, pack the weights, and bind every operation.  Raises InvariantError when the program contradicts itself."""
    native = module.Program(
        path=path,
        threads=threads,
        arena=arena.data_ptr(),
        num_blocks=arena.numel() // spec.block_bytes,
        block_bytes=spec.block_bytes,
        page_bytes=spec.page_bytes,
        pages_per_block=spec.block_size // PAGE_TOKENS,
        kv_dtype=spec.kv_dtype,
        max_tokens=max_tokens,
        max_logit_rows=max_logit_rows,
        max_positions=program.max_positions,
        vocab_size=program.vocab_size,
    )
    weights = _Weights(module, program, threads)
    body = _Binder(native, weights, program, spec, program.buffers, max_tokens, head=False)
    for op in program.body:
        body.add(op)
    head = _Binder(native, weights, program, spec, program.head_buffers, max_logit_rows, head=True)
    for op in program.head:
        head.add(op)
    source, target, logits = body.buffer("hidden"), head.buffer("hidden"), head.buffer("logits", torch.float32, program.vocab_size)
    if source.dtype != target.dtype or source.shape[1] != target.shape[1]:
        raise InvariantError(
            f"the body's hidden rows are {source.shape[1]} {source.dtype}, the head's {target.shape[1]} {target.dtype}"
        )
    native.set_hidden(source.data_ptr(), target.data_ptr(), source.shape[1] * source.element_size())
    return Bound(native, weights.memory, logits, [*body.buffers, *head.buffers], [*body.weights, *head.weights], arena)


class _Weights:
    """Every matrix of the program's products, packed in the order in which a step reads them."""

    def __init__(self, module: ModuleType, program: Program, threads: int) -> None:
        self._dtype, self._threads = DTYPE_NAMES[program.compute_dtype], threads
        matrices = program.matrices()
        self.memory = module.WeightMemory(sum(module.packed_bytes(*matrix.shape, self._dtype, matrix.gated) for matrix in matrices))
        self._packed = {id(matrix): self._pack(matrix) for matrix in matrices}

    def _pack(self, matrix: Matrix) -> Any:
        """The rows die with this call: the next matrix is read into the room that they leave."""
        n, k = matrix.shape
        if matrix.gated and n % 2:
            raise InvariantError(f"a gated matrix has {n} rows; gate and up need an even number")
        rows = _rows(matrix)
        return self.memory.pack(
            rows.data_ptr(), DTYPE_NAMES[rows.dtype], n, k, rows.stride(0), self._dtype, matrix.gated, self._threads
        )

    def find(self, matrix: Matrix) -> Any:
        """The packed form, or None for a matrix that no product uses."""
        return self._packed.get(id(matrix))


class _Binder:
    """Binds the operations of the body or of the head to its buffers."""

    def __init__(
        self, native: Any, weights: _Weights, program: Program, spec: MemorySpec, buffers: tuple[Buffer, ...], rows: int, *, head: bool
    ) -> None:
        self._native, self._weights, self._program, self._spec, self._head = native, weights, program, spec, head
        self._widths = {buffer.name: buffer.width for buffer in buffers}
        self._rows = {buffer.name: buffer.rows for buffer in buffers}
        self._buffers = {buffer.name: _allocate(program, buffer, rows) for buffer in buffers}
        self.weights: list[torch.Tensor] = []

    @property
    def buffers(self) -> list[torch.Tensor]:
        return list(self._buffers.values())

    def buffer(self, name: str, dtype: torch.dtype | None = None, width: int | None = None, rows: int = 1) -> torch.Tensor:
        """The buffer of that name, whose dtype and width must be these.  rows: what it must have for each token."""
        if name not in self._buffers:
            raise InvariantError(f"the program has no buffer {name!r} in its {'head' if self._head else 'body'}")
        buffer = self._buffers[name]
        if dtype is not None and buffer.dtype != dtype:
            raise InvariantError(f"the buffer {name!r} holds {buffer.dtype}; {dtype} is needed")
        if width is not None and self._widths[name] != width:
            raise InvariantError(f"the buffer {name!r} is {self._widths[name]} wide; {width} is needed")
        if self._rows[name] != rows:
            raise InvariantError(f"the buffer {name!r} has {self._rows[name]} rows a token; {rows} are needed")
        return buffer

    def add(self, op: Op) -> None:
        match op:
            case Embed():
                self._embed(op)
            case Norm():
                self._norm(op)
            case Linear():
                self._linear(op)
            case Experts():
                self._experts(op)
            case AppendKV():
                self._append_kv(op)
            case Attention():
                self._attention(op)

    def _embed(self, op: Embed) -> None:
        vocab, width = op.table.shape
        if vocab < self._program.vocab_size:
            raise InvariantError(f"the embedding has {vocab} rows for a vocabulary of {self._program.vocab_size}")
        if op.table.gated:
            raise InvariantError("the embedding's matrix is gated")
        tied = self._weights.find(op.table)
        table = None if tied is not None else self._keep(_rows(op.table).contiguous())
        dtype = torch.float32 if table is None else table.dtype
        positions = None
        if op.positions is not None:
            positions = self._keep(op.positions.to(dtype).contiguous())
            needed = self._program.max_positions + op.position_offset
            if positions.shape[0] < needed or positions.shape[1] != width:
                raise InvariantError(f"the position table is {tuple(positions.shape)}; {needed} rows of {width} are needed")
        self._native.add_embed(
            head=self._head,
            tied=tied,
            table=_address(table),
            dtype=DTYPE_NAMES[dtype],
            positions=_address(positions),
            position_offset=op.position_offset,
            width=width,
            scale=op.scale,
            y=self.buffer(op.out, torch.float32, width).data_ptr(),
        )

    def _norm(self, op: Norm) -> None:
        width = self._widths.get(op.x, 0)
        x, y = self.buffer(op.x, torch.float32), self.buffer(op.out, width=width)
        self._native.add_norm(
            head=self._head,
            layer_norm=op.kind == "layer",
            x=x.data_ptr(),
            weight=self._vector(op.weight, width),
            bias=self._vector(op.bias, width),
            eps=op.eps,
            width=width,
            out=DTYPE_NAMES[y.dtype],
            y=y.data_ptr(),
            ldy=y.shape[1],
        )

    def _linear(self, op: Linear) -> None:
        n, k = op.matrix.shape
        x = self.buffer(op.x, self._program.compute_dtype, k)
        y = self.buffer(op.out, torch.float32 if op.accumulate else None, n // 2 if op.matrix.gated else n)
        if op.x == op.out:
            raise InvariantError(f"a product reads and writes the buffer {op.x!r}")
        if op.accumulate and (op.activation != "none" or op.matrix.gated):
            raise InvariantError(f"a product into {op.out!r} both accumulates and activates")
        self._native.add_linear(
            head=self._head,
            w=self._weights.find(op.matrix),
            x=x.data_ptr(),
            ldx=x.shape[1],
            bias=self._vector(op.bias, n),
            activation=op.activation,
            accumulate=op.accumulate,
            out=DTYPE_NAMES[y.dtype],
            y=y.data_ptr(),
            ldy=y.shape[1],
        )

    def _experts(self, op: Experts) -> None:
        compute, count = self._program.compute_dtype, len(op.up)
        (twice, width), inner_width = op.up[0].shape, op.down[0].shape[1]
        alike = all(up.gated and up.shape == (twice, width) for up in op.up) and twice == 2 * inner_width
        if not alike or len(op.down) != count or any(down.gated or down.shape != (width, inner_width) for down in op.down):
            raise InvariantError(
                f"the experts into {op.out!r} are not {count} alike, ({twice}, {width}) gated and ({width}, {twice // 2})"
            )
        if not 1 <= op.top_k <= count:
            raise InvariantError(f"{op.top_k} of {count} experts can't be chosen")
        x, inner = self.buffer(op.x, compute, width), self.buffer(op.inner, compute, inner_width, op.top_k)
        self._native.add_experts(
            head=self._head,
            up=[self._weights.find(matrix) for matrix in op.up],
            down=[self._weights.find(matrix) for matrix in op.down],
            top_k=op.top_k,
            normalize=op.normalize,
            activation=op.activation,
            dtype=DTYPE_NAMES[compute],
            width=width,
            scores=self.buffer(op.scores, torch.float32, count).data_ptr(),
            x=x.data_ptr(),
            ldx=x.shape[1],
            gathered=self.buffer(op.gathered, compute, width, op.top_k).data_ptr(),
            inner=inner.data_ptr(),
            ld_inner=inner.shape[1],
            parts=self.buffer(op.parts, torch.float32, width, op.top_k).data_ptr(),
            y=self.buffer(op.out, torch.float32, width).data_ptr(),
        )

    def _append_kv(self, op: AppendKV) -> None:
        layer = self._spec.layers[op.layer]
        qkv = self.buffer(op.qkv, torch.float32, (op.num_heads + 2 * layer.num_kv_heads) * layer.head_dim)
        q = self.buffer(op.q, self._program.compute_dtype, op.num_heads * layer.head_dim)
        rotary_dim, cos, sin = 0, 0, 0
        if op.rope is not None:
            rows, half = op.rope.cos.shape
            rotary_dim = 2 * half
            if op.rope.sin.shape != op.rope.cos.shape or rows < self._program.max_positions or rotary_dim > layer.head_dim:
                raise InvariantError(
                    f"the rotary tables are {tuple(op.rope.cos.shape)} and {tuple(op.rope.sin.shape)}; "
                    f"{self._program.max_positions} rows of at most {layer.head_dim // 2} are needed"
                )
            cos, sin = self._table(op.rope.cos), self._table(op.rope.sin)
        self._native.add_append_kv(
            head=self._head,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            layer_offset=self._spec.layer_offset(op.layer),
            num_heads=op.num_heads,
            rotary_dim=rotary_dim,
            cos=cos,
            sin=sin,
            q_norm=self._vector(op.q_norm, layer.head_dim),
            k_norm=self._vector(op.k_norm, layer.head_dim),
            eps=op.eps,
            qkv=qkv.data_ptr(),
            ld_qkv=qkv.shape[1],
            q_dtype=DTYPE_NAMES[q.dtype],
            q=q.data_ptr(),
        )

    def _attention(self, op: Attention) -> None:
        layer = self._spec.layers[op.layer]
        if op.num_heads % layer.num_kv_heads:
            raise InvariantError(f"{op.num_heads} query heads don't divide among {layer.num_kv_heads} key heads")
        width = op.num_heads * layer.head_dim
        q, y = self.buffer(op.q, self._program.compute_dtype, width), self.buffer(op.out, self._program.compute_dtype, width)
        self._native.add_attention(
            head=self._head,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            layer_offset=self._spec.layer_offset(op.layer),
            num_heads=op.num_heads,
            scale=op.scale,
            window=layer.window or 0,
            q_dtype=DTYPE_NAMES[q.dtype],
            q=q.data_ptr(),
            y=y.data_ptr(),
            ldy=y.shape[1],
        )

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.weights.append(tensor)
        return tensor

    def _table(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.to(torch.float32).contiguous()).data_ptr()

    def _vector(self, tensor: torch.Tensor | None, width: int) -> int:
        """The address of a float32 [width], or 0."""
        if tensor is None:
            return 0
        if tensor.shape != (width,):
            raise InvariantError(f"a weight or bias has the shape {tuple(tensor.shape)}; ({width},) is needed")
        return self._table(tensor)


def _allocate(program: Program, buffer: Buffer, tokens: int) -> torch.Tensor:
    """A bfloat16 row is padded to whole pairs; the padding stays zero."""
    dtype = torch.float32 if buffer.kind == "float32" else program.compute_dtype
    return torch.zeros(tokens * buffer.rows, row_bytes(program, buffer) // dtype.itemsize, dtype=dtype)


def _rows(matrix: Matrix) -> torch.Tensor:
    """The matrix as rows that can be read by address: on the CPU, in a dtype the kernels know, each row contiguous."""
    weight = matrix.read()
    if tuple(weight.shape) != matrix.shape:
        raise InvariantError(f"a matrix of the shape {matrix.shape} was read as {tuple(weight.shape)}")
    if weight.dtype not in DTYPE_NAMES:
        weight = weight.to(torch.float32)
    return weight if weight.stride(1) == 1 or weight.shape[1] == 1 else weight.contiguous()


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
