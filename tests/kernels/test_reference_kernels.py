"""The reference kernels against definitions written out with loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels import reference
from octavo.kernels.program import Rope
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def slow_attention(q, k, v, q_start, k_start, scale, window):
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        p = q_start + row
        seen = [j for j in range(k.shape[0]) if k_start + j <= p and (window is None or k_start + j > p - window)]
        for head in range(q.shape[1]):
            scores = [float(q[row, head].double() @ k[j, head // group].double()) * scale for j in seen]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            for j, weight in zip(seen, weights, strict=True):
                out[row, head] += weight / sum(weights) * v[j, head // group].double()
    return out


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 9), before=st.integers(0, 20), group=st.sampled_from([1, 3]), window=st.sampled_from([None, 1, 4, 100]))
def test_attention_is_its_definition(rows, before, group, window):
    torch.manual_seed(rows * 100 + before)
    q, k, v = torch.randn(rows, 2 * group, 16), torch.randn(before + rows, 2, 16), torch.randn(before + rows, 2, 16)
    arguments = {"q_start": before, "k_start": 0, "scale": 0.3, "window": window}
    out = reference.attention(q, k, v, **arguments)
    torch.testing.assert_close(out.double(), slow_attention(q, k, v, **arguments), atol=1e-5, rtol=1e-5)


def test_rows_in_several_tiles_are_the_rows_of_one(monkeypatch):
    q, k, v = torch.randn(50, 4, 16), torch.randn(50, 2, 16), torch.randn(50, 2, 16)
    arguments = {"q_start": 0, "k_start": 0, "scale": 0.25, "window": 7}
    whole = reference.attention(q, k, v, **arguments)
    monkeypatch.setattr(reference, "QUERY_TILE", 8)
    torch.testing.assert_close(reference.attention(q, k, v, **arguments), whole)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38])
def test_what_a_row_does_not_see_has_no_influence(poison):
    q, k, v = torch.randn(6, 4, 16), torch.randn(10, 2, 16), torch.randn(10, 2, 16)
    arguments = {"q_start": 4, "k_start": 0, "scale": 0.25, "window": 5}
    clean = reference.attention(q, k, v, **arguments)
    k[9], v[9] = poison, poison  # seen by the last row only
    torch.testing.assert_close(reference.attention(q, k, v, **arguments)[:5], clean[:5])


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_cache_gives_back_what_was_written_and_touches_nothing_else(block_size, kv_dtype):
    layers = (AttentionLayerSpec(2, 16), AttentionLayerSpec(1, 24), AttentionLayerSpec(3, 8))
    spec = MemorySpec(layers, kv_dtype, block_size)
    num_blocks = -(-150 // block_size) + 3
    arena = torch.full((num_blocks * spec.block_bytes,), 255, dtype=torch.uint8)  # NaN in every dtype
    positions = torch.arange(150)
    table = torch.randperm(num_blocks)[: spec.blocks_for(150)]
    rows = []
    for index, shape in enumerate(layers):
        layer = reference.paged_layer(arena, spec, index)
        k, v = (torch.randn(150, shape.num_kv_heads, shape.head_dim).to(reference.TORCH_DTYPES[kv_dtype]) for _ in "kv")
        reference.write_kv(layer, table[positions // block_size], positions, k, v)
        rows.append((layer, k, v))
    for layer, k, v in rows:
        got_k, got_v = reference.read_kv(layer, table[positions // block_size], positions)
        assert torch.equal(got_k, k.float()) and torch.equal(got_v, v.float())
    free = sorted(set(range(num_blocks)) - set(table.tolist()))
    assert (arena.view(num_blocks, -1)[free] == 255).all()


def test_layout_in_bytes_is_the_one_that_compiled_kernels_read():
    spec = MemorySpec((AttentionLayerSpec(1, 8), AttentionLayerSpec(2, 16)), "bfloat16", 32)
    arena = torch.zeros(2 * spec.block_bytes, dtype=torch.uint8)
    layer = reference.paged_layer(arena, spec, 1)
    block, position, head, dim = 1, 16 + 5, 1, 11  # the block's second page
    k, v = torch.zeros(1, 2, 16), torch.zeros(1, 2, 16)
    k[0, head, dim], v[0, head, dim] = 3.0, 4.0
    reference.write_kv(layer, torch.tensor([block]), torch.tensor([position]), k, v)
    page = (block * spec.block_bytes + spec.page_bytes + spec.layer_offset(1)) // 2
    head_elements = 16 * 16
    k_at = page + head * head_elements + (dim // 2) * 32 + 5 * 2 + dim % 2
    v_at = page + 2 * head_elements + head * head_elements + (5 // 2) * 32 + dim * 2 + 5 % 2
    elements = arena.view(torch.bfloat16)
    assert elements.nonzero().flatten().tolist() == [k_at, v_at]
    assert elements[k_at] == 3.0 and elements[v_at] == 4.0


def test_rotation_turns_pairs_by_the_angle_and_leaves_the_rest():
    angles = torch.tensor([[0.0, 0.0], [0.5, 2.0]])
    x = torch.randn(1, 1, 6)
    got = reference.rotate(x, torch.tensor([1]), Rope(angles.cos(), angles.sin()))[0, 0]
    for pair, angle in enumerate([0.5, 2.0]):
        turned = complex(x[0, 0, pair], x[0, 0, pair + 2]) * complex(math.cos(angle), math.sin(angle))
        assert got[pair] == pytest.approx(turned.real, abs=1e-6) and got[pair + 2] == pytest.approx(turned.imag, abs=1e-6)
    assert torch.equal(got[4:], x[0, 0, 4:])


def test_norms_are_their_definitions():
    x, weight, bias = torch.randn(3, 10, dtype=torch.float64), torch.randn(10), torch.randn(10)
    rms = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-3).double(), rms, atol=1e-6, rtol=1e-5)
    spread = (x.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    layer = (x - x.mean(-1, keepdim=True)) / spread * weight + bias
    torch.testing.assert_close(reference.layer_norm(x, weight, bias, 1e-3).double(), layer, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("activation", "definition"),
    [
        ("none", lambda x: x),
        ("relu", lambda x: max(x, 0.0)),
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_products_and_activations_are_their_definitions(activation, definition):
    x, weight, bias = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4)
    product = (x.double() @ weight.double().T + bias).tolist()
    plain = torch.tensor([[definition(value) for value in row] for row in product])
    gated = torch.tensor([[definition(row[i]) * row[i + 2] for i in range(2)] for row in product])
    torch.testing.assert_close(reference.linear(x, weight, bias, activation), plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(reference.linear(x, weight, bias, activation, gated=True), gated, atol=1e-5, rtol=1e-5)


def test_embedding_scales_and_adds_positions():
    table, learned = torch.randn(7, 4), torch.randn(9, 4)
    got = reference.embed(torch.tensor([3, 6]), torch.tensor([0, 5]), table, scale=2.0, learned=learned, offset=2)
    torch.testing.assert_close(got, torch.stack([table[3] * 2 + learned[2], table[6] * 2 + learned[7]]))
