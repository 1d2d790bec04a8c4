"""Single operations of the compiled kernels, bound by address and run with poisoned surroundings."""

import numpy as np
import torch

from octavo.kernels import _native
from octavo.kernels.native_binding import DTYPE_NAMES

PATHS = _native.available_paths()
NAN = float("nan")


def poisoned(rows: int, width: int, dtype: torch.dtype, *, around: int = 1) -> torch.Tensor:
    """NaN rows, with `around` more of them on both sides; use `inner` for the middle."""
    return torch.full((rows + 2 * around, width), NAN, dtype=dtype)


def is_poison(tensor: torch.Tensor) -> bool:
    return bool(tensor.isnan().all())


class Ops:
    """A program of single operations over `m` rows, all at position 0 of sequences of their own unless `batch` says otherwise."""

    def __init__(self, path: str, threads: int = 1, *, arena: torch.Tensor | None = None, max_positions: int = 1024, **layout) -> None:
        self.arena = torch.zeros(64, dtype=torch.uint8) if arena is None else arena
        self.kept: list[object] = []
        sizes = {"num_blocks": 1, "block_bytes": 64, "page_bytes": 64, "pages_per_block": 1, "kv_dtype": "float32"} | layout
        self.native = _native.Program(
            path=path,
            threads=threads,
            arena=self.arena.data_ptr(),
            max_tokens=4096,
            max_logit_rows=4096,
            max_positions=max_positions,
            vocab_size=1 << 20,
            **sizes,
        )

    def address(self, tensor: torch.Tensor | None) -> int:
        if tensor is None:
            return 0
        self.kept.append(tensor)
        return tensor.data_ptr()

    def pack(self, weight: torch.Tensor, dtype: torch.dtype, *, gated: bool = False, threads: int = 2):
        n, k = weight.shape
        memory = _native.WeightMemory(_native.packed_bytes(n, k, DTYPE_NAMES[dtype], gated))
        self.kept += [memory, weight]
        return memory.pack(
            weight.data_ptr(), DTYPE_NAMES[weight.dtype], n, k, weight.stride(0), DTYPE_NAMES[dtype], gated=gated, threads=threads
        )

    def linear(self, packed, x, y, *, bias=None, activation="none", accumulate=False) -> None:
        self.native.add_linear(
            head=False,
            w=packed,
            x=self.address(x),
            ldx=x.stride(0),
            bias=self.address(bias),
            activation=activation,
            accumulate=accumulate,
            out=DTYPE_NAMES[y.dtype],
            y=self.address(y),
            ldy=y.stride(0),
        )

    def norm(self, x, y, weight, *, bias=None, eps=1e-5, layer_norm=False) -> None:
        self.native.add_norm(
            head=False,
            layer_norm=layer_norm,
            x=self.address(x),
            weight=self.address(weight),
            bias=self.address(bias),
            eps=eps,
            width=weight.numel(),
            out=DTYPE_NAMES[y.dtype],
            y=self.address(y),
            ldy=y.stride(0),
        )

    def run(self, m: int, *, token_ids=None, q_start=None, start=None, write=None, tables=None, contiguous=False) -> None:
        seqs = m if q_start is None else len(q_start) - 1
        ints = lambda values: np.asarray(values, dtype=np.int32)  # noqa: E731
        self.native.forward(
            ints(np.zeros(m) if token_ids is None else token_ids),
            ints(range(m + 1) if q_start is None else q_start),
            ints(np.zeros(seqs) if start is None else start),
            np.asarray(np.ones(seqs) if write is None else write, dtype=np.uint8),
            ints(range(seqs) if tables is not None else np.zeros(seqs)),
            ints([[0]] if tables is None else tables),
            contiguous,
        )
