"""Embedding, norms, and the write into the cache by the compiled kernels, each against the reference formula."""

import numpy as np
import pytest
import torch
from native_ops import NAN, PATHS, Ops, is_poison, poisoned

from octavo.kernels import reference
from octavo.kernels.native_binding import DTYPE_NAMES
from octavo.kernels.program import Rope
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
WIDTHS = (1, 8, 15, 16, 17, 63, 64, 65, 130, 576)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("out", [F32, BF16])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_norms_equal_the_formula_in_bits_of_one_row(path, out, layer_norm):
    for width in WIDTHS:
        weight, bias = random(width, seed=1), random(width, seed=2) if layer_norm else None
        x = poisoned(7, width, F32)
        x[1:8] = random(7, width) * 3 + 1
        ld = -(-width // 2) * 2 + 2
        y = poisoned(7, ld, out)
        ops = Ops(path, threads=3)
        ops.norm(x[1:], y[1:], weight, bias=bias, layer_norm=layer_norm)
        ops.run(7)
        norm = reference.layer_norm(x[1:8], weight, bias, 1e-5) if layer_norm else reference.rms_norm(x[1:8], weight, 1e-5)
        tolerance = {"rtol": 8e-3, "atol": 1e-3} if out == BF16 else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(y[1:8, :width].float(), norm, **tolerance)
        assert (y[1:8, width:] == 0).all(), "columns past the width are zeroed for the product that reads them"
        assert is_poison(y[0]) and is_poison(y[8])
        alone = poisoned(1, ld, out)
        ops = Ops(path)
        ops.norm(x[5:], alone[1:], weight, bias=bias, layer_norm=layer_norm)
        ops.run(1)
        assert torch.equal(alone[1], y[5])


@pytest.mark.parametrize("path", PATHS)
def test_a_constant_row_and_a_huge_one_keep_a_finite_norm(path):
    x = torch.cat([torch.full((1, 40), 7.0), torch.full((1, 40), 1e18), torch.zeros(1, 40)])
    y, weight = torch.full((3, 40), NAN), torch.ones(40)
    ops = Ops(path)
    ops.norm(x, y, weight, layer_norm=True)
    ops.run(3)
    assert torch.isfinite(y).all() and (y[[0, 2]] == 0).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("vocab", "width"), [(70, 33), (128, 64), (5, 576)])
def test_a_tied_embedding_reads_the_packed_matrix(path, dtype, vocab, width):
    table, learned = random(vocab, width).to(dtype), random(10, width, seed=1)
    ids, start = np.arange(9) * 3 % vocab, np.arange(9) % 8
    for positions in (None, learned):
        y = poisoned(9, width, F32)
        ops = Ops(path, threads=2)
        ops.native.add_embed(
            head=False,
            tied=ops.pack(table, dtype),
            table=0,
            dtype="float32",
            positions=ops.address(positions),
            position_offset=2,
            width=width,
            scale=1.5,
            y=ops.address(y[1:]),
        )
        ops.run(9, token_ids=ids, start=start)
        expected = reference.embed(torch.tensor(ids), torch.tensor(start), table, scale=1.5, learned=positions, offset=2)
        assert torch.equal(y[1:10], expected)
        assert is_poison(y[0]) and is_poison(y[10])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_separate_embedding_reads_its_rows(path, dtype):
    table = random(40, 35).to(dtype)
    y = poisoned(4, 35, F32)
    ops = Ops(path)
    ops.native.add_embed(
        head=False,
        tied=None,
        table=ops.address(table),
        dtype=DTYPE_NAMES[dtype],
        positions=0,
        position_offset=0,
        width=35,
        scale=0.5,
        y=ops.address(y[1:]),
    )
    ops.run(4, token_ids=[39, 0, 7, 7])
    assert torch.equal(y[1:5], table[[39, 0, 7, 7]].float() * 0.5)


class Append:
    """One write into a poisoned arena of several layers, by the kernel and by the reference."""

    def __init__(self, head_dim, kv_heads, group, kv_dtype, block_size, *, rotary=None, norms=False, q_dtype=F32):
        self.spec = MemorySpec(tuple(AttentionLayerSpec(kv_heads, head_dim) for _ in range(3)), kv_dtype, block_size)
        self.heads, self.kv_heads, self.head_dim, self.q_dtype = kv_heads * group, kv_heads, head_dim, q_dtype
        angles = torch.outer(torch.arange(256.0), 0.7 ** torch.arange((rotary or head_dim) // 2))
        self.rope = None if rotary == 0 else Rope(angles.cos().contiguous(), angles.sin().contiguous())
        self.q_norm, self.k_norm = (random(head_dim, seed=5), random(head_dim, seed=6)) if norms else (None, None)

    def native(self, path, qkv, arena, *, threads=1, **batch):
        spec, m = self.spec, len(qkv)
        ops = Ops(
            path,
            threads,
            arena=arena,
            max_positions=256,
            num_blocks=arena.numel() // spec.block_bytes,
            block_bytes=spec.block_bytes,
            page_bytes=spec.page_bytes,
            pages_per_block=spec.block_size // 16,
            kv_dtype=spec.kv_dtype,
        )
        q = poisoned(m, self.heads * self.head_dim, self.q_dtype)
        ops.native.add_append_kv(
            head=False,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            layer_offset=spec.layer_offset(1),
            num_heads=self.heads,
            rotary_dim=0 if self.rope is None else 2 * self.rope.cos.shape[1],
            cos=ops.address(self.rope and self.rope.cos),
            sin=ops.address(self.rope and self.rope.sin),
            q_norm=ops.address(self.q_norm),
            k_norm=ops.address(self.k_norm),
            eps=1e-6,
            qkv=ops.address(qkv),
            ld_qkv=qkv.stride(0),
            q_dtype=DTYPE_NAMES[self.q_dtype],
            q=ops.address(q[1:]),
        )
        ops.run(m, **batch)
        assert is_poison(q[0]) and is_poison(q[-1])
        return q[1 : m + 1].clone()

    def formula(self, qkv, arena, blocks, positions, written):
        q, k, v = qkv.view(len(qkv), -1, self.head_dim).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None:
            q, k = reference.rms_norm(q, self.q_norm, 1e-6), reference.rms_norm(k, self.k_norm, 1e-6)
        if self.rope is not None:
            q, k = reference.rotate(q, positions, self.rope), reference.rotate(k, positions, self.rope)
        layer = reference.paged_layer(arena, self.spec, 1)
        reference.write_kv(layer, blocks[written], positions[written], k[written], v[written])
        return q.flatten(1)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("head_dim", "kv_heads", "group", "block_size", "rotary", "norms"),
    [
        (64, 3, 3, 16, None, False),
        (24, 2, 1, 32, 16, True),
        (80, 1, 4, 128, 32, False),
        (40, 2, 2, 64, 0, True),
        (256, 1, 2, 16, None, True),
    ],
)
def test_append_writes_its_own_elements_and_no_others(path, kv_dtype, head_dim, kv_heads, group, block_size, rotary, norms):
    case = Append(head_dim, kv_heads, group, kv_dtype, block_size, rotary=rotary, norms=norms)
    tables = np.array([[5, 2, 7, 0, 9, 10, 11], [8, 1, 3, 6, 12, 13, 14], [4, 15, 16, 17, 18, 19, 20]], dtype=np.int32)
    q_start, start, write = [0, 30, 31, 37], [3, 96, 11], [1, 1, 0]
    positions = torch.cat([torch.arange(s, s + n) for s, n in zip(start, np.diff(q_start), strict=True)])
    seqs = np.repeat(np.arange(3), np.diff(q_start))
    blocks = torch.tensor([tables[s][p // block_size] for s, p in zip(seqs, positions.tolist(), strict=True)])
    qkv = random(37, (kv_heads * (group + 2)) * head_dim)
    arenas = [torch.full((21 * case.spec.block_bytes,), 0xFF, dtype=torch.uint8) for _ in range(2)]
    q = case.native(path, qkv, arenas[0], threads=3, q_start=q_start, start=start, write=write, tables=tables)
    expected = case.formula(qkv, arenas[1], blocks, positions, torch.tensor(write, dtype=torch.bool)[seqs])
    torch.testing.assert_close(q, expected, rtol=1e-5, atol=1e-5)
    layers = [[reference.paged_layer(arena, case.spec, i) for i in range(3)] for arena in arenas]
    for found, wanted in zip(*layers, strict=True):
        for name in ("keys", "values"):
            a, b = getattr(found, name).float(), getattr(wanted, name).float()
            assert torch.equal(a.isnan(), b.isnan())
            torch.testing.assert_close(a.nan_to_num(), b.nan_to_num(), rtol=1e-2 if kv_dtype != "float32" else 1e-5, atol=2e-5)
    alone = torch.full_like(arenas[0], 0xFF)
    for row in reversed(range(37)):
        s = seqs[row]
        one = {"q_start": [0, 1], "start": [int(positions[row])], "write": [write[s]], "tables": tables[s : s + 1]}
        assert torch.equal(case.native(path, qkv[row : row + 1].contiguous(), alone, **one)[0], q[row])
    assert torch.equal(alone, arenas[0]), "bits depend on how rows are batched"


@pytest.mark.parametrize("path", PATHS)
def test_append_follows_a_contiguous_region_and_rounds_q(path):
    case = Append(16, 2, 2, "bfloat16", 16, q_dtype=BF16)
    qkv = random(20, 8 * 16)
    arenas = [torch.full((6 * case.spec.block_bytes,), 0xFF, dtype=torch.uint8) for _ in range(2)]
    batch = {"q_start": [0, 20], "start": [14], "write": [1]}
    q = case.native(path, qkv, arenas[0], tables=[[2]], contiguous=True, **batch)
    again = case.native(path, qkv, arenas[1], tables=[[2, 3, 4]], **batch)
    assert torch.equal(q, again) and torch.equal(*arenas)
    expected = case.formula(
        qkv, torch.zeros_like(arenas[0]), torch.zeros(20, dtype=torch.int64), torch.arange(14, 34), torch.zeros(20) > 0
    )
    torch.testing.assert_close(q.float(), expected, rtol=8e-3, atol=1e-4)
