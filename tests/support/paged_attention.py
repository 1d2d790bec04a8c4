"""K and V of several sequences in a poisoned arena, and the compiled attention over them."""

import math

import numpy as np
import torch

from octavo.kernels import _native
from octavo.kernels.native_binding import DTYPE_NAMES
from octavo.kernels.reference import paged_layer, write_kv
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

PATHS = _native.available_paths()
NAN = float("nan")


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Sequences:
    """Sequences of given lengths, random K and V, in the middle one of three layers.

    Everything that no token was written to is `poison`, other layers and spare blocks included; so are the table's unused entries.
    layout: "shuffled" or "contiguous" blocks.  `unseen`: {sequence: (from, to)} tokens to overwrite with poison.
    """

    def __init__(
        self, lengths, kv_heads, head_dim, dtype, *, block_size=16, poison=NAN, layout="shuffled", seed=0, unseen=None, kv=None
    ) -> None:
        layer = AttentionLayerSpec(kv_heads, head_dim)
        self.spec = MemorySpec((layer, layer, layer), DTYPE_NAMES[dtype], block_size)
        self.contiguous = layout == "contiguous"
        counts = [self.spec.blocks_for(n) for n in lengths]
        self.num_blocks = sum(counts) + 2
        self.arena = torch.empty(self.num_blocks * self.spec.block_bytes, dtype=torch.uint8)
        if math.isfinite(poison):
            poison = min(poison, torch.finfo(dtype).max)
        self.arena.view(dtype).fill_(poison)
        if kv is None:
            kv = [
                tuple(normal(n, kv_heads, head_dim, seed=seed + 2 * i + j, dtype=dtype) for j in (0, 1)) for i, n in enumerate(lengths)
            ]
        self.kv = kv
        ids = np.arange(self.num_blocks) if self.contiguous else np.random.default_rng(seed).permutation(self.num_blocks)
        self.tables = np.full((len(lengths), max(counts)), -1, dtype=np.int32)
        view = paged_layer(self.arena, self.spec, 1)
        for i, (k, v) in enumerate(self.kv):
            own, ids = ids[: counts[i]], ids[counts[i] :]
            used = 1 if self.contiguous else counts[i]
            self.tables[i, :used] = own[:used]
            positions = torch.arange(len(k))
            blocks = torch.from_numpy(own.astype(np.int64))[positions // block_size]
            write_kv(view, blocks, positions, k, v)
            if unseen and i in unseen:
                low, high = unseen[i]
                bad = torch.full_like(k[low:high], poison)
                write_kv(view, blocks[low:high], positions[low:high], bad, bad)

    def attend(self, q, q_start, start, *, path, rows=None, scale=None, window=0, threads=1):
        """q: [tokens, heads, head_dim] -> y of the same shape and dtype; y's surroundings must stay as they are."""
        tokens, heads, dim = q.shape
        out = torch.full((tokens + 2, heads * dim + 8), NAN, dtype=q.dtype)
        program = _native.Program(
            path=path,
            threads=threads,
            arena=self.arena.data_ptr(),
            num_blocks=self.num_blocks,
            block_bytes=self.spec.block_bytes,
            page_bytes=self.spec.page_bytes,
            pages_per_block=self.spec.block_size // 16,
            kv_dtype=self.spec.kv_dtype,
            max_tokens=max(tokens, 1),
            max_logit_rows=1,
            max_positions=max(len(k) for k, _ in self.kv),
            vocab_size=1,
        )
        program.add_attention(
            head=False,
            num_kv_heads=self.spec.layers[1].num_kv_heads,
            head_dim=dim,
            layer_offset=self.spec.layer_offset(1),
            num_heads=heads,
            scale=scale if scale is not None else 1 / math.sqrt(dim),
            window=window,
            q_dtype=DTYPE_NAMES[q.dtype],
            q=q.data_ptr(),
            y=out[1:].data_ptr(),
            ldy=out.stride(0),
        )
        seqs = len(start)
        ints = lambda values: np.asarray(values, dtype=np.int32)  # noqa: E731
        program.forward(
            np.zeros(tokens, dtype=np.int32),
            ints(q_start),
            ints(start),
            np.zeros(seqs, dtype=np.uint8),
            ints(range(seqs) if rows is None else rows),
            self.tables,
            self.contiguous,
        )
        assert out[0].isnan().all() and out[-1].isnan().all() and out[:, heads * dim :].isnan().all()
        return out[1:-1, : heads * dim].reshape(q.shape)

    def formula(self, q, q_start, start, *, scale=None, window=0):
        """softmax(q k^T * scale) v over what each row sees, in float64."""
        found = []
        for s, first in enumerate(start):
            k, v = (x.double() for x in self.kv[s])
            rows = q[q_start[s] : q_start[s + 1]].double()
            group = q.shape[1] // k.shape[1]
            back = torch.arange(first, first + len(rows)).unsqueeze(1) - torch.arange(len(k))
            hidden = back < 0
            if window:
                hidden |= back >= window
            scores = torch.einsum("thd,nhd->htn", rows, k.repeat_interleave(group, 1)) * (scale or 1 / math.sqrt(q.shape[2]))
            weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
            found.append(torch.einsum("htn,nhd->thd", weights, v.repeat_interleave(group, 1)))
        return torch.cat(found)
