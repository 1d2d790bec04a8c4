"""How much memory an executor will take, known before any of it is taken."""

from math import prod

from octavo.kernels.availability import native_kernels
from octavo.kernels.program import Attention, Buffer, Embed, Experts, Program
from octavo.spec.memory import MemorySpec


def workspace_bytes_for(program: Program, spec: MemorySpec, max_tokens: int, max_logit_rows: int, threads: int) -> int:
    """Bytes of the buffers for so many rows of the body and of the head, of attention's partial results and of experts' routing.

    The last two only where there are compiled kernels; the reference ones have none.
    """
    body = sum(row_bytes(program, buffer) * buffer.rows for buffer in program.buffers)
    head = sum(row_bytes(program, buffer) * buffer.rows for buffer in program.head_buffers)
    scratch = attention_scratch_bytes(program, spec, threads) + routing_bytes(program, max_tokens)
    return body * max_tokens + head * max_logit_rows + scratch


def matrix_bytes(program: Program, *, packed: bool) -> int:
    """Bytes of all matrices once they are read: packed by the compiled kernels, or widened to float32 by the reference ones."""
    products = {id(matrix): matrix for matrix in program.matrices()}
    tables = {id(op.table): op.table for op in program.body if isinstance(op, Embed) and id(op.table) not in products}
    module = native_kernels().module
    if not packed or module is None:
        return 4 * sum(prod(matrix.shape) for matrix in (*products.values(), *tables.values()))
    dtype = str(program.compute_dtype).removeprefix("torch.")
    return sum(module.packed_bytes(*matrix.shape, dtype, matrix.gated) for matrix in products.values()) + sum(
        prod(table.shape) * program.compute_dtype.itemsize for table in tables.values()
    )


def row_bytes(program: Program, buffer: Buffer) -> int:
    """Bytes of one row.  A row of 16 bits is padded to whole pairs, as the compiled kernels read it."""
    if buffer.kind == "float32":
        return buffer.width * 4
    pair = 4 // program.compute_dtype.itemsize
    return -(-buffer.width // pair) * 4


def routing_bytes(program: Program, max_tokens: int) -> int:
    """Of the compiled kernels: a choice's expert, place and share, and where each expert's rows begin.  The largest's serve all."""
    if native_kernels().module is None:
        return 0
    mixtures = [op for op in program.body if isinstance(op, Experts)]
    choices = max((op.top_k for op in mixtures), default=0) * max_tokens
    return 4 * (3 * choices + max((len(op.up) + 1 for op in mixtures), default=0))


def attention_scratch_bytes(program: Program, spec: MemorySpec, threads: int) -> int:
    """What the compiled kernels say themselves, of a program with this one's attention and nothing else."""
    module = native_kernels().module
    if module is None:
        return 0
    bare = module.Program(
        path=module.available_paths()[0],
        threads=threads,
        arena=0,
        num_blocks=0,
        block_bytes=spec.block_bytes,
        page_bytes=spec.page_bytes,
        pages_per_block=1,
        kv_dtype=spec.kv_dtype,
        max_tokens=0,
        max_logit_rows=0,
        max_positions=program.max_positions,
        vocab_size=program.vocab_size,
    )
    for op in program.body:
        if isinstance(op, Attention):
            layer = spec.layers[op.layer]
            bare.add_attention(
                head=False,
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                layer_offset=0,
                num_heads=op.num_heads,
                scale=op.scale,
                window=layer.window or 0,
                q_dtype="float32",
                q=0,
                y=0,
                ldy=0,
            )
    return int(bare.scratch_bytes())
