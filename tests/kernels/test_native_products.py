"""The compiled matrix product: against a float64 formula, and bit for bit against itself one row at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_ops import NAN, PATHS, Ops, is_poison, poisoned

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ACTIVATIONS = {
    "none": lambda v: v,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(path, x, weight, *, threads=1, out=F32, dtype=F32, gated=False, bias=None, activation="none", before=None):
    """One product with NaN around the output's rows and columns, and in the rows of x that aren't asked for."""
    m, k = x.shape
    width = weight.shape[0] // 2 if gated else weight.shape[0]
    inputs = poisoned(m, k + k % 2 + 6, dtype)
    inputs[1 : m + 1, : k + k % 2] = 0
    inputs[1 : m + 1, :k] = x.to(dtype)
    outputs = poisoned(m, width + 5, out)
    if before is not None:
        outputs[1 : m + 1, :width] = before
    ops = Ops(path, threads)
    ops.linear(
        ops.pack(weight, dtype, gated=gated),
        inputs[1:],
        outputs[1:],
        bias=bias,
        activation=activation,
        accumulate=before is not None,
    )
    ops.run(m)
    assert is_poison(outputs[0]) and is_poison(outputs[-1]) and is_poison(outputs[:, width:])
    return outputs[1 : m + 1, :width].clone()


def formula(x, weight, *, dtype=F32, gated=False, bias=None, activation="none", before=None):
    sums = x.to(dtype).double() @ weight.to(dtype).double().T
    if bias is not None:
        sums = sums + bias.double()
    act = ACTIVATIONS[activation]
    if gated:
        gate, up = sums.chunk(2, dim=1)
        return act(gate) * up
    return act(sums) if before is None else before.double() + act(sums)


def assert_close(found, expected, dtype, out=F32):
    scale = expected.abs().max().item() + 1e-3
    tolerance = 3e-6 if dtype == F32 else 2e-5
    if out == BF16:
        tolerance = 5e-3
    assert not found.isnan().any()
    assert (found.double() - expected).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 8), (63, 31), (64, 64), (65, 33), (130, 575), (200, 1)])
def test_odd_sizes_equal_the_formula(path, dtype, n, k):
    x, weight = random(7, k), random(n, k, seed=1)
    assert_close(product(path, x, weight, dtype=dtype), formula(x, weight, dtype=dtype), dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("n", [96, 77])
def test_a_long_chain_is_cut_without_a_trace(path, dtype, n):
    """k is longer than what of a panel stays in the cache, and more rows than a tile: sums are put down and taken up again."""
    x, weight = random(13, 2600), random(n, 2600, seed=1)
    many = product(path, x, weight, dtype=dtype)
    assert_close(many, formula(x, weight, dtype=dtype), dtype)
    for row in (0, 6, 12):
        assert torch.equal(product(path, x[row : row + 1], weight, dtype=dtype)[0], many[row])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_bits_depend_on_neither_rows_nor_team(path, dtype):
    x, weight = random(400, 70), random(150, 70, seed=1)
    alone = torch.cat([product(path, x[i : i + 1], weight, dtype=dtype) for i in range(0, 400, 23)])
    for m in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 31, 193, 400):
        for threads in (1, 2, 3, 4):
            many = product(path, x[:m], weight, dtype=dtype, threads=threads)
            kept = range(0, m, 23)
            assert torch.equal(many[list(kept)], alone[: len(kept)]), (m, threads)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_and_epilogue(data):
    path, dtype = data.draw(st.sampled_from(PATHS)), data.draw(st.sampled_from([F32, BF16]))
    m, n, k = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 140)), data.draw(st.integers(1, 90))
    gated = data.draw(st.booleans())
    accumulate = not gated and data.draw(st.booleans())
    out = F32 if accumulate or dtype == F32 else data.draw(st.sampled_from([F32, BF16]))
    n = 2 * n if gated else n
    x, weight = random(m, k), random(n, k, seed=1)
    options = {
        "dtype": dtype,
        "gated": gated,
        "bias": random(n, seed=2) if data.draw(st.booleans()) else None,
        "activation": "none" if accumulate else data.draw(st.sampled_from(list(ACTIVATIONS))),
        "before": random(m, n, seed=3) if accumulate else None,
    }
    found = product(path, x, weight, threads=data.draw(st.integers(1, 3)), out=out, **options)
    assert_close(found, formula(x, weight, **options), dtype, out)
    row = data.draw(st.integers(0, m - 1))
    if accumulate:
        options["before"] = options["before"][row : row + 1]
    assert torch.equal(product(path, x[row : row + 1], weight, out=out, **options)[0], found[row])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations_over_the_whole_line(path, name):
    values = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 200.0, -200.0, 3e38, -3e38])])
    found = product(path, torch.ones(1, 1), values[:, None].contiguous(), activation=name)[0]
    expected = ACTIVATIONS[name](values.double())
    assert not found.isnan().any()
    # Relative where the result is more than rounding dust of its argument: far left of 0 these functions vanish.
    error = (found.double() - expected).abs() / (expected.abs() + 1e-9 * values.abs().double() + 1e-30)
    assert error.max().item() < 2e-6
    assert error[values.abs() < 4].max().item() < 1e-6


@pytest.mark.parametrize("path", PATHS)
def test_a_nan_stays_in_its_own_row(path):
    x, weight = random(9, 40), random(70, 40, seed=1)
    clean = product(path, x, weight, activation="silu")
    x[4, 11] = NAN
    found = product(path, x, weight, activation="silu")
    assert is_poison(found[4])
    others = [i for i in range(9) if i != 4]
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("source", [F32, BF16, F16])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_packing_rounds_as_torch_does(source, dtype):
    """Products with unit vectors read the packed weights back, from strided rows of every source dtype."""
    weight = torch.cat([random(70, 37), torch.tensor([[6e-8, -6e-6, 65504.0, 0.0, -0.0] + [1.5] * 32])]).to(source)
    stored = torch.full((weight.shape[0], 50), 7.0).to(source)
    stored[:, :37] = weight
    ops = Ops(PATHS[0])
    packed = ops.pack(stored[:, :37], dtype)
    y = poisoned(37, weight.shape[0], F32, around=0)
    ops.linear(packed, torch.eye(38)[:37].to(dtype).contiguous(), y)
    ops.run(37)
    assert torch.equal(y.T, weight.to(dtype).float())


def test_packing_past_the_memory_is_refused():
    ops = Ops(PATHS[0])
    ops.pack(random(3, 3), F32)
    memory, weight = ops.kept
    with pytest.raises(ValueError, match="needs 4096 bytes; 0 of 4096 are left"):
        memory.pack(weight.data_ptr(), "float32", 3, 3, 3, "float32", False, 1)
