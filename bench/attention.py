"""Attention alone: through a shuffled block table, a sequential one, without a table, and torch's own SDPA, in turns.

    python bench/attention.py [--dtype bfloat16] [--threads 1] [--block-size 16] [--rounds 15] [--cases prefill,decode] [--json OUT]

K and V lie as in a real arena: a page holds all --layers, so that one layer's pages are far apart.  Decode runs over as many layers as
make the data outgrow the caches, as a step does; prefill over one.  Everything is run once to warm up, then in a new random order each
round; figures are medians.  With one thread they are CPU time (a busy machine falsifies it less), else wall time.  SDPA gets
contiguous K and V and a batch of equal lengths, which suits it best.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo.cli.table import size, table
from octavo.core.errors import ConfigError
from octavo.kernels.availability import native_kernels
from octavo.kernels.reference import TORCH_DTYPES, paged_layer, write_kv
from octavo.runner.arena import Arena
from octavo.spec.memory import PAGE_TOKENS, AttentionLayerSpec, MemorySpec

OUTGROWS_CACHES = 128 << 20  # bytes of K and V that a decode run reads at least, where the layers suffice
COLUMNS = {
    "case": "case",
    "shuffled": "shuffled table ms|.3f",
    "sequential": "sequential table ms|.3f",
    "contiguous": "no table ms|.3f",
    "sdpa": "torch SDPA ms|.3f",
    "table_cost": "shuffled / none|.3f",
    "speedup": "SDPA / shuffled|.2f",
    "gflops": "GFLOP/s|.0f",
    "gb_per_s": "GB/s|.1f",
}


@dataclass(frozen=True)
class Case:
    """`batch` sequences of `length` tokens, the last `rows` of each as queries."""

    kind: str
    batch: int
    length: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.batch} x {self.length}"


PREFILL = tuple(Case("prefill", 1, n, n) for n in (512, 4096))
DECODE = tuple(Case("decode", batch, n, 1) for batch, n in ((1, 256), (32, 256), (32, 1024), (8, 4096)))


@dataclass(frozen=True)
class Shape:
    """A model's attention: heads, KV heads, head size, and how many layers share a page."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: int


class Bench:
    """One case in one arena, and the four ways to run it."""

    def __init__(self, case: Case, shape: Shape, dtype: torch.dtype, block_size: int, threads: int, path: str | None) -> None:
        self.case, self.shape = case, shape
        layer = AttentionLayerSpec(shape.kv_heads, shape.head_dim)
        name = next(name for name, found in TORCH_DTYPES.items() if found == dtype)
        self.spec = MemorySpec((layer,) * shape.layers, name, block_size)
        self.layer_bytes = case.batch * case.length * layer.bytes_per_token(name)
        self.layers_run = min(shape.layers, math.ceil(OUTGROWS_CACHES / self.layer_bytes)) if case.kind == "decode" else 1
        blocks = self.spec.blocks_for(case.length)
        self.num_blocks = blocks * case.batch
        self.arena = Arena(self.num_blocks, self.spec.block_bytes)
        ids = np.arange(self.num_blocks, dtype=np.int32).reshape(case.batch, blocks)
        shuffled = np.random.default_rng(0).permutation(self.num_blocks).astype(np.int32).reshape(ids.shape)
        tokens = case.batch * case.rows
        self.q = torch.randn(tokens, shape.heads, shape.head_dim, dtype=dtype)
        self.y = torch.empty_like(self.q)
        self.kv = [self._fill(i, dtype, torch.from_numpy(ids.astype(np.int64))) for i in range(self.layers_run)]
        program = self._program(name, tokens, threads, path)
        starts = np.full(case.batch, case.length - case.rows, dtype=np.int32)
        edges = np.arange(case.batch + 1, dtype=np.int32) * case.rows
        rows, nothing = np.arange(case.batch, dtype=np.int32), np.zeros(case.batch, dtype=np.uint8)

        def through(tables: np.ndarray, contiguous: bool = False) -> Callable[[], Any]:
            return lambda: program.forward(np.zeros(tokens, dtype=np.int32), edges, starts, nothing, rows, tables, contiguous)

        # Only the sequential order gives each sequence its own K and V; for time, whose they are makes no difference.
        self.ways = {
            "shuffled": through(shuffled),
            "sequential": through(ids),
            "contiguous": through(ids[:, :1].copy(), contiguous=True),
            "sdpa": self._sdpa,
        }

    def _fill(self, layer: int, dtype: torch.dtype, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        case, shape = self.case, self.shape
        k, v = (torch.randn(case.batch, case.length, shape.kv_heads, shape.head_dim).to(dtype) for _ in range(2))
        positions = torch.arange(case.length)
        view = paged_layer(self.arena.bytes, self.spec, layer)
        for s in range(case.batch):
            write_kv(view, ids[s, positions // self.spec.block_size], positions, k[s], v[s])
        return k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()

    def _program(self, kv_dtype: str, tokens: int, threads: int, path: str | None) -> Any:
        module = native_kernels().module
        if module is None:
            raise ConfigError(f"this installation has no compiled kernels to measure: {native_kernels().reason}")
        program = module.Program(
            path=path or module.available_paths()[0],
            threads=threads,
            arena=self.arena.bytes.data_ptr(),
            num_blocks=self.num_blocks,
            block_bytes=self.spec.block_bytes,
            page_bytes=self.spec.page_bytes,
            pages_per_block=self.spec.block_size // PAGE_TOKENS,
            kv_dtype=kv_dtype,
            max_tokens=tokens,
            max_logit_rows=1,
            max_positions=self.case.length,
            vocab_size=1,
        )
        for layer in range(self.layers_run):
            program.add_attention(
                head=False,
                num_kv_heads=self.shape.kv_heads,
                head_dim=self.shape.head_dim,
                layer_offset=self.spec.layer_offset(layer),
                num_heads=self.shape.heads,
                scale=self.shape.head_dim**-0.5,
                window=0,
                q_dtype=kv_dtype,
                q=self.q.data_ptr(),
                y=self.y.data_ptr(),
                ldy=self.shape.heads * self.shape.head_dim,
            )
        return program

    def _sdpa(self) -> torch.Tensor:
        case = self.case
        q = self.q.view(case.batch, case.rows, self.shape.heads, self.shape.head_dim).transpose(1, 2)
        for k, v in self.kv:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.rows > 1, enable_gqa=True)
        return out

    def largest_difference(self) -> float:
        """Between the kernel's rows and SDPA's, over the last layer."""
        self.ways["sequential"]()
        expected = self._sdpa().transpose(1, 2).reshape(self.y.shape)
        return (self.y.float() - expected.float()).abs().max().item()

    def measure(self, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
        """Medians in milliseconds a layer, and what follows from them."""
        difference = self.largest_difference()
        seconds: dict[str, list[float]] = {way: [] for way in self.ways}
        for turn in range(rounds + 1):
            order = list(self.ways)
            random.shuffle(order)
            for way in order:
                before = clock()
                self.ways[way]()
                if turn:  # the first warms up
                    seconds[way].append((clock() - before) / self.layers_run)
        median = {way: statistics.median(values) for way, values in seconds.items()}
        shape, rows = self.shape, self.case.rows
        seen = self.case.batch * rows * (self.case.length - (rows - 1) / 2)  # pairs of a query and a key, per head
        return {
            "case": self.case.name,
            **{way: value * 1e3 for way, value in median.items()},
            "table_cost": median["shuffled"] / median["contiguous"],
            "speedup": median["sdpa"] / median["shuffled"],
            "gflops": 4 * seen * shape.heads * shape.head_dim / median["shuffled"] / 1e9,
            "gb_per_s": self.layer_bytes / median["shuffled"] / 1e9 if rows == 1 else None,
            "layers_run": self.layers_run,
            "largest_difference": difference,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention alone, with a block table, without one, and in torch.")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", default="prefill,decode", help="prefill, decode, or both with a comma")
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--path", help="the instruction path to measure (default: the best that the machine has)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape = Shape(args.heads, args.kv_heads, args.head_dim, args.layers)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    cases = [case for case in PREFILL + DECODE if case.kind in args.cases.split(",")]
    found = []
    for case in cases:
        bench = Bench(case, shape, TORCH_DTYPES[args.dtype], args.block_size, args.threads, args.path)
        print(f"{case.name}: {bench.layers_run} layers of {size(bench.layer_bytes)}", flush=True)
        found.append(bench.measure(args.rounds, clock))
    print(table(found, COLUMNS))
    if args.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.json.write_text(json.dumps({"settings": settings, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
