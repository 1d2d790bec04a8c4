"""The compiled executor as a whole: the reference's values, the same bits however a batch is cut, and refusals before any write."""

import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.core.errors import ConfigError, InvariantError
from octavo.kernels.choice import make_executor, matrix_bytes_for
from octavo.kernels.executor import Batch
from octavo.kernels.native import NativeExecutor, available_paths
from octavo.kernels.program import AppendKV, Attention, Buffer, Embed, Linear, Matrix, Norm, Program, Rope
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.kernels.sizes import attention_scratch_bytes, workspace_bytes_for
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

PATHS = available_paths()
VOCAB, HIDDEN, HEADS, KV_HEADS, DIM, INNER, POSITIONS = 130, 72, 4, 2, 24, 100, 200


def make_program(dtype=torch.float32, *, layers=2, tied=True) -> Program:
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    angles = torch.outer(torch.arange(float(POSITIONS)), 0.6 ** torch.arange(DIM // 2))
    rope, table = Rope(angles.cos(), angles.sin()), Matrix.of(random(VOCAB, HIDDEN).to(dtype))
    body: list = [Embed(table, "hidden", scale=3.0, positions=random(POSITIONS + 2, HIDDEN), position_offset=2)]
    for layer in range(layers):
        body += [
            Norm("rms", "hidden", "normed", 1 + random(HIDDEN), 1e-5),
            Linear(
                "normed", "qkv", Matrix.of(random((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)), bias=random((HEADS + 2 * KV_HEADS) * DIM)
            ),
            AppendKV("qkv", "q", layer, HEADS, rope, 1 + random(DIM), 1 + random(DIM)),
            Attention("q", "mixed", layer, HEADS, DIM**-0.5),
            Linear("mixed", "hidden", Matrix.of(random(HIDDEN, HEADS * DIM)), accumulate=True),
            Norm("layer", "hidden", "normed", 1 + random(HIDDEN), 1e-5, random(HIDDEN)),
            Linear("normed", "inner", Matrix.of(random(2 * INNER, HIDDEN), gated=True), activation="silu"),
            Linear("inner", "hidden", Matrix.of(random(HIDDEN, INNER)), bias=random(HIDDEN), accumulate=True),
        ]
    hidden, normed = Buffer("hidden", HIDDEN, "float32"), Buffer("normed", HIDDEN, "compute")
    rows = {"qkv": (HEADS + 2 * KV_HEADS) * DIM, "q": HEADS * DIM, "mixed": HEADS * DIM, "inner": INNER}
    buffers = [Buffer(name, width, "float32" if name == "qkv" else "compute") for name, width in rows.items()]
    head = (
        Norm("rms", "hidden", "normed", torch.ones(HIDDEN), 1e-5),
        Linear("normed", "logits", table if tied else Matrix.of(random(VOCAB, HIDDEN))),
    )
    head_buffers = (hidden, normed, Buffer("logits", VOCAB, "float32"))
    return Program((hidden, normed, *buffers), tuple(body), head_buffers, head, VOCAB, POSITIONS, dtype)


def make_spec(dtype=torch.float32, *, block_size=16, layers=2, window=None, head_dim=DIM) -> MemorySpec:
    kv_dtype = "float32" if dtype == torch.float32 else "bfloat16"
    return MemorySpec(tuple(AttentionLayerSpec(KV_HEADS, head_dim, window) for _ in range(layers)), kv_dtype, block_size)


class Engine:
    """An executor over a poisoned arena of 12 blocks, and shuffled tables of two sequences."""

    def __init__(self, dtype=torch.float32, *, block_size=16, make=NativeExecutor, **options):
        self.spec = make_spec(dtype, block_size=block_size)
        self.arena = torch.full((12 * self.spec.block_bytes,), 0xFF, dtype=torch.uint8)
        options = {"max_tokens": 100, "max_logit_rows": 60, "threads": 2} | options
        self.executor = make(make_program(dtype), self.spec, self.arena, **options)
        self.tables = np.array([[3, 9, 1, 4], [7, 2, 8, 5]], dtype=np.int32)

    def run(self, *chunks, write=1, tables=None, contiguous=False):
        """chunks: (row of the tables, token ids, start).  Logits of all rows."""
        bounds = np.cumsum([0, *(len(ids) for _, ids, _ in chunks)], dtype=np.int32)
        self.executor.forward(
            Batch(
                token_ids=np.array([token for _, ids, _ in chunks for token in ids], dtype=np.int32),
                q_start=bounds,
                start=np.array([start for _, _, start in chunks], dtype=np.int32),
                write=np.full(len(chunks), write, dtype=np.uint8),
                row=np.array([row for row, _, _ in chunks], dtype=np.int32),
                tables=self.tables if tables is None else tables,
                contiguous=contiguous,
            )
        )
        return self.executor.logits(np.arange(bounds[-1], dtype=np.int32)).clone()


IDS = (np.arange(50) * 37 % VOCAB).tolist()
OTHER = (np.arange(50) * 11 % VOCAB).tolist()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.08)])
@pytest.mark.parametrize("tied", [True, False])
def test_values_are_the_references(path, dtype, tolerance, tied):
    program, spec = make_program(dtype, tied=tied), make_spec(dtype)
    engines = [Engine(dtype), Engine(dtype, make=ReferenceExecutor)]
    sizes = {"max_tokens": 100, "max_logit_rows": 100, "threads": 2}
    engines[0].executor = NativeExecutor(program, spec, engines[0].arena, **sizes, path=path)
    engines[1].executor = ReferenceExecutor(program, spec, engines[1].arena, **sizes)
    assert engines[0].executor.name == path
    for chunks in ([(0, IDS[:20], 0), (1, OTHER[:37], 0)], [(0, IDS[20:21], 20), (1, OTHER[37:41], 37)], [(1, OTHER[40:41], 40)]):
        found, expected = (engine.run(*chunks) for engine in engines)
        assert expected.abs().max() > 1
        assert (found - expected).abs().max() < tolerance


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_depend_on_the_request_alone(path, dtype):
    whole = Engine(dtype, path=path, threads=1).run((0, IDS[:45], 0))
    for threads, block_size in ((1, 16), (2, 32), (3, 64)):
        engine = Engine(dtype, path=path, threads=threads, block_size=block_size)
        rows = [engine.run((1, OTHER[:8], 0), (0, IDS[:13], 0))[8:]]
        rows.append(engine.run((0, IDS[13:30], 13), (1, OTHER[8:9], 8))[:17])
        rows += [engine.run((0, IDS[i : i + 1], i)) for i in range(30, 45)]
        assert torch.equal(torch.cat(rows), whole), (threads, block_size)
        query_only = engine.run((0, IDS[44:45], 44), write=0)
        assert torch.equal(query_only[0], whole[44])
        region = engine.run((0, IDS[:45], 0), tables=np.array([[6]], dtype=np.int32), contiguous=True)
        assert torch.equal(region, whole)


def test_copied_blocks_carry_a_sequence_over():
    engine = Engine(threads=2)
    engine.run((0, IDS[:40], 0))
    expected = engine.run((0, IDS[40:41], 40))
    engine.run((0, IDS[:40], 0))
    engine.executor.copy_blocks(np.array([[3, 10], [9, 0], [1, 6]], dtype=np.int32))
    tables = np.array([[10, 0, 6]], dtype=np.int32)
    assert torch.equal(engine.run((0, IDS[40:41], 40), tables=tables), expected)
    blocks = engine.arena.view(12, -1)
    assert torch.equal(blocks[[3, 9]], blocks[[10, 0]])
    engine.executor.copy_blocks(np.empty((0, 2), dtype=np.int32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [0, VOCAB, 0]}, rf"the token id of row 1 is {VOCAB}; the limit is {VOCAB - 1}"),
        ({"token_ids": [0, -1, 0]}, "the token id of row 1 is -1"),
        ({"q_start": [0, 2, 4]}, "q_start's end, at 2 is 4; the limit is 3"),
        ({"q_start": [1, 2, 3]}, "q_start of sequence 0 is 1"),
        ({"q_start": [0, 5, 3]}, "the row count of sequence 1 is -2"),
        ({"q_start": [0, 3]}, "q_start, start, write and row have 2, 2, 2 and 2 entries"),
        ({"start": [0, POSITIONS]}, f"the last position of sequence 1 is {POSITIONS}; the limit is {POSITIONS - 1}"),
        ({"start": [-1, 0]}, "the first position of sequence 0 is -1"),
        ({"start": [0, 64]}, "the number of blocks of sequence 1 is 5; the limit is 4"),
        ({"row": [0, 2]}, "the table row of sequence 1 is 2; the limit is 1"),
        ({"tables": [[3, 0, 0, 0], [12, 0, 0, 0]]}, "a block id of sequence 1 is 12; the limit is 11"),
        ({"tables": [[-1, 0, 0, 0], [2, 0, 0, 0]]}, "a block id of sequence 0 is -1"),
        ({"tables": [[0], [11]], "start": [0, 16], "contiguous": True}, "the last block of sequence 1 is 12; the limit is 11"),
    ],
)
def test_a_wrong_batch_is_refused_before_anything_is_written(change, message):
    engine = Engine()
    before = engine.arena.clone()
    fields = {"token_ids": [1, 2, 3], "q_start": [0, 2, 3], "start": [0, 0], "write": [1, 1], "row": [0, 1], "tables": engine.tables}
    contiguous = change.pop("contiguous", False)
    arrays = {name: np.array(value, dtype=np.uint8 if name == "write" else np.int32) for name, value in (fields | change).items()}
    with pytest.raises(InvariantError, match=message):
        engine.executor.forward(Batch(**arrays, contiguous=contiguous))
    assert torch.equal(engine.arena, before)


def test_too_many_rows_and_wrong_copies_are_refused():
    engine = Engine(max_tokens=20, max_logit_rows=3)
    with pytest.raises(InvariantError, match="number of tokens of batch 0 is 21; the limit is 20"):
        engine.run((0, IDS[:21], 0))
    with pytest.raises(InvariantError, match="number of logit rows of batch 0 is 4; the limit is 3"):
        engine.run((0, IDS[:4], 0))
    with pytest.raises(InvariantError, match="the hidden row of logit row 0 is 4; the limit is 3"):
        engine.executor.logits(np.array([4], dtype=np.int32))
    before = engine.arena.clone()
    with pytest.raises(InvariantError, match="the block id of copy 1 is 12; the limit is 11"):
        engine.executor.copy_blocks(np.array([[3, 4], [0, 12]], dtype=np.int32))
    assert torch.equal(engine.arena, before)


def test_what_the_kernels_cannot_take_is_said_with_the_remedy():
    arena, sizes = torch.zeros(0, dtype=torch.uint8), {"max_tokens": 8, "max_logit_rows": 8, "threads": 1}
    program = make_program()
    with pytest.raises(ConfigError, match=r"block_size=8: the compiled kernels take 16, 32, 64, 128"):
        NativeExecutor(program, make_spec(block_size=8), arena, **sizes)
    for head_dim in (8, 20, 264):
        with pytest.raises(ConfigError, match=f"heads of {head_dim} elements"):
            NativeExecutor(program, make_spec(head_dim=head_dim), arena, **sizes)
    with pytest.raises(ConfigError, match=r"not in torch.float16; set dtype"):
        NativeExecutor(replace(program, compute_dtype=torch.float16), make_spec(), arena, **sizes)
    with pytest.raises(ConfigError, match=r"'sse9' isn't one that this machine can run; it has .*portable"):
        NativeExecutor(program, make_spec(), arena, **sizes, path="sse9")
    with pytest.raises(ConfigError, match="threads=0 must be at least 1"):
        NativeExecutor(program, make_spec(), arena, **(sizes | {"threads": 0}))
    with pytest.raises(InvariantError, match="the arena must be contiguous bytes"):
        NativeExecutor(program, make_spec(), torch.zeros(10, dtype=torch.uint8), **sizes)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Norm("rms", "hidden", "nowhere", torch.ones(HIDDEN), 1e-5), "no buffer 'nowhere' in its body"),
        (Norm("rms", "hidden", "normed", torch.ones(HIDDEN + 1), 1e-5), r"shape \(73,\); \(72,\) is needed"),
        (Norm("rms", "normed", "normed", torch.ones(HIDDEN), 1e-5), "'normed' holds torch.bfloat16; torch.float32 is needed"),
        (Linear("normed", "inner", Matrix.of(torch.ones(INNER, HIDDEN + 2))), "'normed' is 72 wide; 74 is needed"),
        (Linear("normed", "inner", Matrix.of(torch.ones(INNER, HIDDEN)), accumulate=True), "'inner' holds torch.bfloat16"),
        (Linear("normed", "normed", Matrix.of(torch.ones(HIDDEN, HIDDEN))), "reads and writes the buffer 'normed'"),
        (
            Linear("normed", "hidden", Matrix.of(torch.ones(2 * HIDDEN, HIDDEN), gated=True), accumulate=True),
            "both accumulates and activates",
        ),
        (AppendKV("qkv", "q", 0, HEADS, Rope(torch.ones(9, 12), torch.ones(9, 12))), "200 rows of at most 12 are needed"),
        (AppendKV("qkv", "q", 0, HEADS + 1), "'qkv' is 192 wide; 216 is needed"),
        (Attention("q", "mixed", 0, 3, 1.0), "3 query heads don't divide among 2 key heads"),
        (Embed(Matrix.of(torch.ones(VOCAB - 1, HIDDEN)), "hidden"), "129 rows for a vocabulary of 130"),
    ],
)
def test_a_program_that_contradicts_itself_is_refused(op, message):
    program = make_program(torch.bfloat16)
    with pytest.raises(InvariantError, match=message):
        NativeExecutor(
            replace(program, body=(*program.body, op)),
            make_spec(torch.bfloat16),
            torch.zeros(0, dtype=torch.uint8),
            max_tokens=8,
            max_logit_rows=8,
            threads=1,
        )


@pytest.mark.parametrize("tied", [True, False])
def test_one_raw_matrix_exists_at_a_time(tied):
    """The peak of memory at load is one copy of the weights and a matrix, whatever the model."""
    program, spec = make_program(tied=tied), make_spec()
    read: list[weakref.ref] = []
    most = 0

    def counted(matrix):
        def rows():
            nonlocal most
            copy = matrix.read().clone()
            read.append(weakref.ref(copy))
            most = max(most, sum(ref() is not None for ref in read))
            return copy

        return replace(matrix, read=rows)

    fresh = {id(op.matrix): counted(op.matrix) for op in program.body + program.head if isinstance(op, Linear)}

    def counting(op):
        if isinstance(op, Linear):
            return replace(op, matrix=fresh[id(op.matrix)])
        return replace(op, table=fresh[id(op.table)]) if isinstance(op, Embed) and tied else op

    program = replace(program, body=tuple(map(counting, program.body)), head=tuple(map(counting, program.head)))
    arena = torch.zeros(spec.block_bytes, dtype=torch.uint8)
    executor = NativeExecutor(program, spec, arena, max_tokens=8, max_logit_rows=8, threads=1)
    assert most == 1 and len(read) == len(fresh)
    assert not any(ref() is not None for ref in read)
    assert executor.weight_bytes() >= 4 * sum(rows * columns for rows, columns in (matrix.shape for matrix in fresh.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_what_an_executor_takes_is_known_before(tied, dtype):
    program, spec = make_program(dtype, tied=tied), make_spec(dtype)
    arena = torch.zeros(spec.block_bytes, dtype=torch.uint8)
    for kernels in ("auto", "reference"):
        executor = make_executor(kernels, program, spec, arena, max_tokens=24, max_logit_rows=8, threads=2)
        expected = workspace_bytes_for(program, spec, 24, 8, 2)
        scratch = 0 if kernels == "auto" else attention_scratch_bytes(program, spec, 2)
        assert executor.workspace_bytes() == expected - scratch and attention_scratch_bytes(program, spec, 2) > 0
        loose = {}
        for op in program.body + program.head:
            found = (getattr(op, name, None) for name in ("weight", "bias", "q_norm", "k_norm"))
            rope = getattr(op, "rope", None)
            loose |= {id(t): t.nbytes for t in (*found, *((rope.cos, rope.sin) if rope else ())) if t is not None}
        # A learned position has the dtype of the token table beside it.
        positions = (POSITIONS + 2) * HIDDEN * (dtype.itemsize if kernels == "auto" and not tied else 4)
        assert executor.weight_bytes() == matrix_bytes_for(kernels, program) + positions + sum(loose.values())


def test_time_and_bytes_are_accounted_for():
    engine = Engine()
    assert set(engine.executor.seconds()) == {"embed", "norm", "linear", "experts", "append_kv", "attention", "copy"}
    assert not any(engine.executor.seconds().values())
    engine.run((0, IDS[:40], 0))
    engine.executor.copy_blocks(np.array([[3, 10]], dtype=np.int32))
    assert all(value > 0 or kind == "experts" for kind, value in engine.executor.seconds().items())
    body = 100 * 4 * (HIDDEN * 2 + 8 * DIM + 2 * 4 * DIM + INNER)
    head = 60 * 4 * (2 * HIDDEN + VOCAB)
    assert engine.executor.workspace_bytes() >= body + head


def test_one_openmp_runtime_serves_torch_and_the_kernels():
    """In a process of its own: other packages that tests import may bring a runtime along."""
    program = "from octavo.kernels.native import openmp_libraries; print(len(openmp_libraries()))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"
