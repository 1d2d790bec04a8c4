"""The reference executor on a hand-made program: the same rows however a batch is cut, laid out or stored."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from octavo.core.errors import InvariantError
from octavo.kernels.executor import Batch
from octavo.kernels.program import AppendKV, Attention, Buffer, Embed, Linear, Matrix, Norm, Program, Rope
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

VOCAB, HEADS, KV_HEADS, DIM = 50, 4, 2, 16
WIDTH = HEADS * DIM
LENGTH = 45


def make_program(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    angles = torch.outer(torch.arange(64.0), 0.5 ** torch.arange(0.0, DIM // 2))
    rope, table = Rope(angles.cos(), angles.sin()), Matrix.of(random(VOCAB, WIDTH).to(dtype))
    body = [Embed(table, "hidden", scale=4.0)]
    for layer in range(2):
        body += [
            Norm("rms", "hidden", "normed", torch.ones(WIDTH), 1e-6),
            Linear("normed", "qkv", Matrix.of(random((HEADS + 2 * KV_HEADS) * DIM, WIDTH).to(dtype))),
            AppendKV("qkv", "q", layer, HEADS, rope, q_norm=torch.ones(DIM), k_norm=torch.ones(DIM)),
            Attention("q", "mixed", layer, HEADS, 0.5),
            Linear("mixed", "hidden", Matrix.of(random(WIDTH, WIDTH).to(dtype)), accumulate=True),
        ]
    hidden, normed = Buffer("hidden", WIDTH, "float32"), Buffer("normed", WIDTH, "compute")
    buffers = (hidden, normed, Buffer("qkv", 8 * DIM, "float32"), Buffer("q", WIDTH, "compute"), Buffer("mixed", WIDTH, "compute"))
    head = (Norm("rms", "hidden", "normed", torch.ones(WIDTH), 1e-6), Linear("normed", "logits", table))
    return Program(buffers, tuple(body), (hidden, normed, Buffer("logits", VOCAB, "float32")), head, VOCAB, 64, dtype)


class Setup:
    def __init__(self, *, block_size=16, kv_dtype="float32", window=None, dtype=torch.float32, num_blocks=None, max_tokens=100):
        self.spec = MemorySpec((AttentionLayerSpec(KV_HEADS, DIM), AttentionLayerSpec(KV_HEADS, DIM, window)), kv_dtype, block_size)
        self.num_blocks = num_blocks or 3 * self.spec.blocks_for(LENGTH)
        self.arena = torch.full((self.num_blocks * self.spec.block_bytes,), 255, dtype=torch.uint8)
        self.executor = ReferenceExecutor(
            make_program(dtype), self.spec, self.arena, max_tokens=max_tokens, max_logit_rows=max_tokens, threads=1
        )
        shuffled = np.random.default_rng(1).permutation(self.num_blocks).astype(np.int32)
        self.tables = shuffled[: 2 * self.spec.blocks_for(LENGTH)].reshape(2, -1)

    def run(self, chunks, *, write=1, contiguous=False, tables=None):
        """chunks: (row, ids, start).  Logits of each chunk's rows."""
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
        logits = self.executor.logits(np.arange(bounds[-1], dtype=np.int32))
        return [logits[low:high].clone() for low, high in pairwise(bounds)]


IDS = np.random.default_rng(2).integers(0, VOCAB, LENGTH).tolist()
OTHER = np.random.default_rng(3).integers(0, VOCAB, LENGTH).tolist()


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_chunks_among_others_equal_one_piece_in_any_block_size(block_size, window):
    (whole,) = Setup(window=window).run([(0, IDS, 0)])
    setup = Setup(block_size=block_size, window=window)
    first, _ = setup.run([(0, IDS[:7], 0), (1, OTHER[:20], 0)])
    _, second = setup.run([(1, OTHER[20:21], 20), (0, IDS[7:33], 7)])
    rest = [setup.run([(0, IDS[p : p + 1], p)])[0] for p in range(33, LENGTH)]
    torch.testing.assert_close(torch.cat([first, second, *rest]), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_16_bit_storage_rounds_k_and_v_alone(kv_dtype):
    exact, rounded = Setup().run([(0, IDS, 0)])[0], Setup(kv_dtype=kv_dtype).run([(0, IDS, 0)])[0]
    assert 0 < (exact - rounded).abs().max() < 0.1


def test_bfloat16_products_stay_near_float32():
    exact, rounded = Setup().run([(0, IDS, 0)])[0], Setup(dtype=torch.bfloat16, kv_dtype="bfloat16").run([(0, IDS, 0)])[0]
    assert 0 < (exact - rounded).abs().max() < 0.2


def test_query_only_rows_read_the_cache_and_leave_it():
    setup = Setup()
    (whole,) = setup.run([(0, IDS, 0)])
    before = setup.arena.clone()
    (again,) = setup.run([(0, IDS[-3:], LENGTH - 3)], write=0)
    torch.testing.assert_close(again, whole[-3:], atol=1e-5, rtol=1e-5)
    assert torch.equal(setup.arena, before)
    setup.run([(0, OTHER[-3:], LENGTH - 3)], write=0)  # other tokens would write other bytes
    assert torch.equal(setup.arena, before)


def test_contiguous_blocks_need_only_the_first_entry():
    setup = Setup(num_blocks=12)
    (whole,) = setup.run([(0, IDS, 0)])
    (straight,) = setup.run([(0, IDS, 0)], contiguous=True, tables=np.array([[5]], dtype=np.int32))
    torch.testing.assert_close(straight, whole)


def test_copied_blocks_serve_as_the_originals():
    setup = Setup(num_blocks=12)
    tables = np.array([[0, 1, 2], [6, 7, 8]], dtype=np.int32)
    (whole,) = setup.run([(0, IDS, 0)], tables=tables)
    setup.executor.copy_blocks(np.array([[0, 6], [1, 7], [2, 8]], dtype=np.int32))
    (last,) = setup.run([(1, IDS[-1:], LENGTH - 1)], tables=tables)
    torch.testing.assert_close(last[0], whole[-1], atol=1e-5, rtol=1e-5)
    setup.executor.copy_blocks(np.empty((0, 2), dtype=np.int32))


def test_blocks_that_a_window_left_behind_may_hold_anything():
    setup = Setup(window=5, block_size=4)
    setup.run([(0, IDS[:-1], 0)])
    expected = Setup(window=5, block_size=4)
    (whole,) = expected.run([(0, IDS, 0)])
    layer = setup.executor._layers[1]
    layer.keys[setup.tables[0][:8]] = torch.nan
    layer.values[setup.tables[0][:8]] = torch.nan
    (last,) = setup.run([(0, IDS[-1:], LENGTH - 1)])
    torch.testing.assert_close(last[0], whole[-1], atol=1e-5, rtol=1e-5)


def test_time_and_memory_are_accounted_for():
    setup = Setup(max_tokens=64)
    setup.run([(0, IDS, 0)])
    setup.executor.copy_blocks(np.array([[0, 1]], dtype=np.int32))
    seconds = setup.executor.seconds()
    assert seconds.pop("experts") == 0
    assert set(seconds) == {"linear", "attention", "append_kv", "norm", "embed", "copy"}
    assert all(value > 0 for value in seconds.values())
    widths = WIDTH * 4 + 8 * DIM + 2 * WIDTH + VOCAB
    assert setup.executor.workspace_bytes() == 64 * 4 * widths


def test_more_rows_than_the_buffers_hold_are_refused():
    setup = Setup(max_tokens=8)
    with pytest.raises(InvariantError, match="a step of 9 tokens; the buffers were made for 8"):
        setup.run([(0, IDS[:9], 0)])
    setup.run([(0, IDS[:8], 0)])
    with pytest.raises(InvariantError, match="logits of 9 rows; the buffers were made for 8"):
        setup.executor.logits(np.zeros(9, dtype=np.int32))


def test_arena_of_another_size_is_refused():
    spec = MemorySpec((AttentionLayerSpec(KV_HEADS, DIM),) * 2, "float32", 16)
    with pytest.raises(InvariantError, match=f"a multiple of {spec.block_bytes}"):
        ReferenceExecutor(make_program(), spec, torch.zeros(100, dtype=torch.uint8), max_tokens=1, max_logit_rows=1, threads=1)
