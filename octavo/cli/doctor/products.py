"""The matrix products of a model's shapes: whether a row's bits depend on its batch, and how fast they are."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from octavo.kernels.executor import Batch, Executor
from octavo.kernels.program import Buffer, Embed, Linear, Matrix, Norm, Program
from octavo.spec.memory import PAGE_TOKENS, AttentionLayerSpec, MemorySpec

MAX_ROWS = 512
ROW_COUNTS = (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 200, 256, 511, 512)
FIRST_ROWS = (0, 1, 7, 250)
ALONE = (0, 1, 2, 7, 63, 250, 257, 511)
TIMED_ROWS = (1, 8, 32, 128, 512)

MakeExecutor = Callable[[Program, MemorySpec, int], Executor]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A product's weight: [n, k].  gated: n counts gate and up together, and half as many columns come out."""

    n: int
    k: int
    gated: bool = False

    def __str__(self) -> str:
        return f"{self.n}x{self.k}" + (" gated" if self.gated else "")


# Of SmolLM2-135M: query, key and value; output; gate and up; down; the head.
DEFAULT_SHAPES = (Shape(960, 576), Shape(576, 576), Shape(3072, 576, gated=True), Shape(576, 1536), Shape(49152, 576))


def shapes_of(program: Program) -> list[Shape]:
    """Every product shape of a model, each once."""
    matrices = [op.matrix for op in (*program.body, *program.head) if isinstance(op, Linear)]
    return list(dict.fromkeys(Shape(*matrix.shape, matrix.gated) for matrix in matrices))


def one_product(shape: Shape, dtype: torch.dtype, *, seed: int = 0) -> tuple[Program, MemorySpec, torch.Tensor]:
    """A program that is one product, in its head: logits of row i = weight x normalised row i.  Also its weight, [n, k] float32."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape.n, shape.k, generator=generator)
    matrix = Matrix.of(weight, shape.gated)
    width = shape.n // 2 if shape.gated else shape.n
    # A gated matrix can't be an embedding as well.
    table = Matrix.of(torch.randn(width, shape.k, generator=generator)) if shape.gated else matrix
    program = Program(
        buffers=(Buffer("embedded", shape.k, "float32"), Buffer("hidden", shape.k, "compute")),
        body=(Embed(table, "embedded"), Norm("rms", "embedded", "hidden", torch.ones(shape.k), 1e-6)),
        head_buffers=(Buffer("hidden", shape.k, "compute"), Buffer("logits", width, "float32")),
        head=(Linear("hidden", "logits", matrix, activation="silu" if shape.gated else "none"),),
        vocab_size=width,
        max_positions=MAX_ROWS,
        compute_dtype=dtype,
    )
    spec = MemorySpec((AttentionLayerSpec(1, 16),), "float32", PAGE_TOKENS)
    return program, spec, weight


def fill(executor: Executor, vocab_size: int) -> None:
    """Run the body for `MAX_ROWS` rows, so that the head has something to multiply."""
    executor.forward(
        Batch(
            token_ids=np.arange(MAX_ROWS, dtype=np.int32) % vocab_size,
            q_start=np.array([0, MAX_ROWS], dtype=np.int32),
            start=np.zeros(1, dtype=np.int32),
            write=np.zeros(1, dtype=np.uint8),
            row=np.zeros(1, dtype=np.int32),
            tables=np.zeros((1, MAX_ROWS // PAGE_TOKENS), dtype=np.int32),
        )
    )


def rows_that_differ(logits: Callable[[np.ndarray], torch.Tensor]) -> list[str]:
    """Row counts and positions at which a row's bits are not those of the row alone; empty when law 1 holds.

    logits: rows (int32) -> float32 [len(rows), n], valid until the next call.
    """
    everything = np.arange(MAX_ROWS, dtype=np.int32)
    together = _bits(logits(everything))

    def same(first: int, count: int) -> bool:
        some = slice(first, first + count)
        return torch.equal(_bits(logits(everything[some])), together[some])

    alone = [f"1 row at {row}" for row in ALONE if not same(row, 1)]
    spans = [(first, count) for count in ROW_COUNTS for first in FIRST_ROWS if first + count <= MAX_ROWS]
    return alone + [f"{count} rows at {first}" for first, count in spans if not same(first, count)]


def examine_products(
    shapes: Iterable[Shape], dtype: torch.dtype, make: MakeExecutor, *, note: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Per shape: `differ` (see `rows_that_differ`), and in `speed`, per row count, GFLOP/s of ours and of oneDNN's packed product."""
    found = []
    for shape in shapes:
        note(f"product {shape}")
        program, spec, weight = one_product(shape, dtype)
        executor = make(program, spec, MAX_ROWS)
        fill(executor, program.vocab_size)
        differ = rows_that_differ(executor.logits)
        other = _onednn(weight.to(dtype))
        speed = [_speed(executor, other, shape, rows, dtype) for rows in TIMED_ROWS]
        found.append({**asdict(shape), "differ": differ, "speed": speed})
    return found


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that compares by bits, so that NaN equals NaN and 0 differs from -0."""
    return tensor.clone().view(torch.int32)


def _onednn(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """torch's product with a weight packed once, or None where it refuses (bfloat16 without AVX-512, for one)."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        torch.ops.mkldnn._linear_pointwise(weight[:1], packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return None

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return result

    return product


def _speed(
    executor: Executor, other: Callable[[torch.Tensor], torch.Tensor] | None, shape: Shape, rows: int, dtype: torch.dtype
) -> dict[str, Any]:
    """The fastest of interleaved runs: what the machine can do.  Ours is timed by the executor's clock, without gathering rows."""
    chosen = np.arange(rows, dtype=np.int32)
    x = torch.randn(rows, shape.k).to(dtype)
    ours: list[float] = []
    theirs: list[float] = []
    end = time.perf_counter() + 0.15
    while len(ours) < 5 or (time.perf_counter() < end and len(ours) < 200):
        before = executor.seconds()["linear"]
        executor.logits(chosen)
        ours.append(executor.seconds()["linear"] - before)
        if other is not None:
            begin = time.perf_counter()
            other(x)
            theirs.append(time.perf_counter() - begin)
    flops = 2.0 * rows * shape.n * shape.k
    seconds = min(ours)
    return {
        "rows": rows,
        "gflops": flops / seconds / 1e9,
        "onednn_gflops": flops / min(theirs) / 1e9 if theirs else None,
        "weight_gb_s": shape.n * shape.k * dtype.itemsize / seconds / 1e9,
    }
