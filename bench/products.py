"""Octavo's matrix products beside torch's (oneDNN with weights packed once), in turns.

    python bench/products.py [--dtype bfloat16] [--threads 2] [--shapes 960x576,..] [--rows 1,8,32,..] [--reps 21] [--json OUT]

A shape is out x in features.  Each repetition times one product after the other, so that a machine that drifts drifts for both;
the figures are medians.  The last lines stream a whole model's weights (30 layers and the head of SmolLM2-135M) past one to eight
rows, and read the same number of bytes with a plain sum: what such a step could reach if nothing but memory bound it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from octavo.cli.table import table
from octavo.kernels.executor import Batch
from octavo.kernels.native import NativeExecutor
from octavo.kernels.program import Buffer, Embed, Linear, Matrix, Norm, Program
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

SHAPES = "960x576,576x576,3072x576,576x1536,49152x576"
LAYERS = 30


@dataclass(frozen=True)
class Line:
    """One comparison; times in microseconds, rates in GFLOP/s (of the stream: GB/s of weights)."""

    what: str
    rows: int
    octavo_us: float
    other_us: float
    octavo_rate: float
    other_rate: float
    ratio: float


class Products:
    """`repeat` products of `shapes` over `rows` rows, each from real values, timed by the executor's own clock."""

    def __init__(self, shapes: list[tuple[int, int]], rows: int, dtype: torch.dtype, threads: int, repeat: int = 1) -> None:
        widths = sorted({k for _, k in shapes})
        body: list[Embed | Norm | Linear] = []
        for k in widths:
            body += [Embed(Matrix.of(torch.randn(64, k)), f"embedded{k}"), Norm("rms", f"embedded{k}", f"x{k}", torch.ones(k), 1e-5)]
        products = [Linear(f"x{k}", f"y{n}", Matrix.of(torch.randn(n, k))) for n, k in shapes]
        body += products * repeat
        buffers = [Buffer(f"embedded{k}", k, "float32") for k in widths] + [Buffer(f"x{k}", k, "compute") for k in widths]
        buffers += [Buffer(f"y{n}", n, "compute") for n in sorted({n for n, _ in shapes})]
        hidden = Buffer("hidden", 2, "compute")
        head = (Linear("hidden", "logits", Matrix.of(torch.randn(64, 2))),)
        program = Program((*buffers, hidden), tuple(body), (hidden, Buffer("logits", 64, "float32")), head, 64, 16, dtype)
        spec = MemorySpec((AttentionLayerSpec(1, 16),), "float32", 16)
        arena = torch.zeros(spec.block_bytes, dtype=torch.uint8)
        self._executor = NativeExecutor(program, spec, arena, max_tokens=rows, max_logit_rows=1, threads=threads)
        self._repeat = repeat
        zeros = np.zeros(rows, dtype=np.int32)
        tables = np.zeros((1, 1), dtype=np.int32)
        ids, bounds = np.arange(rows, dtype=np.int32) % 64, np.arange(rows + 1, dtype=np.int32)
        self._batch = Batch(ids, bounds, zeros, np.ones(rows, dtype=np.uint8), zeros, tables)

    def __call__(self) -> float:
        before = self._executor.seconds()["linear"]
        self._executor.forward(self._batch)
        return (self._executor.seconds()["linear"] - before) / self._repeat


def timed(function: Callable[[], object], repeat: int) -> Callable[[], float]:
    """Seconds of one call, from `repeat` of them."""

    def run() -> float:
        begin = time.perf_counter()
        for _ in range(repeat):
            function()
        return (time.perf_counter() - begin) / repeat

    return run


def medians(first: Callable[[], float], second: Callable[[], float], reps: int) -> tuple[float, float]:
    """Medians of both, taken in turns after two rounds that warm up."""
    pairs = [(first(), second()) for _ in range(reps + 2)][2:]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def compare(n: int, k: int, rows: int, dtype: torch.dtype, threads: int, reps: int) -> Line:
    """One shape at one number of rows against oneDNN."""
    repeat = max(1, min(64, int(4e8 / (2 * n * k * rows))))
    weight, x = torch.randn(n, k).to(dtype), torch.randn(rows, k).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
    theirs = timed(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), repeat)
    ours, other = medians(Products([(n, k)], rows, dtype, threads, repeat), theirs, reps)
    flops = 2e-9 * n * k * rows
    return Line(f"{n}x{k}", rows, ours * 1e6, other * 1e6, flops / ours, flops / other, other / ours)


def stream(rows: int, dtype: torch.dtype, threads: int, reps: int) -> Line:
    """A model's products, each weight used once, against a plain sum over the same number of bytes."""
    shapes = [(960, 576), (576, 576), (3072, 576), (576, 1536)] * LAYERS + [(49152, 576)]
    gigabytes = sum(n * k for n, k in shapes) * dtype.itemsize / 1e9
    plain = torch.zeros(int(gigabytes * 1e9 / 4))
    ours, other = medians(Products(shapes, rows, dtype, threads), timed(plain.sum, 1), reps)
    return Line("stream", rows, ours * 1e6, other * 1e6, gigabytes / ours, gigabytes / other, other / ours)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default="1,2,4,8,16,32,128,512")
    parser.add_argument("--reps", type=int, default=21)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    rows = [int(text) for text in args.rows.split(",")]
    shapes = [(int(n), int(k)) for n, k in (text.split("x") for text in args.shapes.split(","))]
    lines = [compare(n, k, m, dtype, args.threads, args.reps) for n, k in shapes for m in rows if n * m <= 49152 * 128]
    lines += [stream(m, dtype, args.threads, args.reps) for m in (1, 2, 4, 8)]
    columns = {"what": "product", "rows": "rows", "octavo_us": "octavo us|.1f", "other_us": "other us|.1f"}
    columns |= {"octavo_rate": "octavo rate|.1f", "other_rate": "other rate|.1f", "ratio": "ratio|.2f"}
    print(table([asdict(line) for line in lines], columns))
    print("other: oneDNN, rates in GFLOP/s; of the stream a plain sum, rates in GB/s")
    if args.json:
        record = {"dtype": args.dtype, "threads": args.threads, "lines": [asdict(line) for line in lines]}
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
