"""The compiled paged attention: against a float64 formula, and bit for bit against itself however the work is cut."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_attention import NAN, PATHS, Sequences, normal

from octavo.kernels import reference

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
STORAGES = [(F32, F32), (BF16, BF16), (F16, F32), (F16, BF16), (BF16, F32), (F32, BF16)]  # of K and V; of q and y
DTYPE_IDS = [f"kv {str(kv)[6:]} q {str(q)[6:]}" for kv, q in STORAGES]
# head_dim, kv heads, queries to a head, block size, window
SHAPES = [
    (64, 3, 3, 16, 0),
    (16, 1, 1, 32, 0),
    (24, 2, 2, 128, 37),
    (40, 1, 3, 64, 1),
    (72, 1, 5, 64, 0),
    (80, 2, 4, 16, 100),
    (96, 1, 7, 16, 64),
    (128, 1, 8, 32, 0),
    (256, 1, 2, 16, 1000),
]
BOUNDARIES = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 1023, 1024, 1025]

each_path = pytest.mark.parametrize("path", PATHS)
each_storage = pytest.mark.parametrize(("kv_dtype", "q_dtype"), STORAGES, ids=DTYPE_IDS)


@pytest.fixture(autouse=True)
def one_torch_thread():
    """The formula's small operations gain nothing from a pool, and on a busy machine wait for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def starts(counts):
    edges = [0]
    for n in counts:
        edges.append(edges[-1] + n)
    return edges


def tolerance(q_dtype, expected):
    # bfloat16 rounds the output (2^-9 of it) and, beside bfloat16 storage, the weights (2^-9 of each, errors that mostly cancel)
    scale = 1e-5 if q_dtype == F32 else 2**-8
    return scale * expected.abs().max().item()


@functools.lru_cache(maxsize=1)
def ragged_batch(shape, kv_dtype, q_dtype):
    dim, kv_heads, group, block_size, window = shape
    lengths, counts = [1, 16, 65, 200, 1025, 1100], [1, 16, 3, 9, 1, 26]
    memory = Sequences(lengths, kv_heads, dim, kv_dtype, block_size=block_size)
    q_start, start = starts(counts), [n - c for n, c in zip(lengths, counts, strict=True)]
    q = normal(q_start[-1], kv_heads * group, dim, seed=99, dtype=q_dtype) * 2
    return memory, q, q_start, start, memory.formula(q, q_start, start, window=window)


@each_path  # varies first
@each_storage
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_ragged_batch_equals_the_formula(path, kv_dtype, q_dtype, shape):
    memory, q, q_start, start, expected = ragged_batch(shape, kv_dtype, q_dtype)
    found = memory.attend(q, q_start, start, path=path, window=shape[-1])
    assert (found.double() - expected).abs().max().item() <= tolerance(q_dtype, expected)


@each_path
def test_it_does_what_the_reference_kernel_defines(path):
    memory = Sequences([150], 2, 64, F32)
    q = normal(50, 6, 64, seed=3)
    found = memory.attend(q, [0, 50], [100], path=path, window=40)
    k, v = memory.kv[0]
    expected = reference.attention(q, k, v, q_start=100, k_start=0, scale=64**-0.5, window=40)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@each_path
@pytest.mark.parametrize(("kv_dtype", "q_dtype"), [(F32, F32), (BF16, BF16), (F16, F32)], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("limit", BOUNDARIES)
def test_decode_at_every_boundary_equals_the_formula_and_prefill(path, kv_dtype, q_dtype, limit):
    memory = Sequences([limit], 1, 32, kv_dtype)
    rows = min(limit, 20)
    q = normal(rows, 2, 32, seed=5, dtype=q_dtype)
    whole = memory.attend(q, [0, rows], [limit - rows], path=path)
    last = memory.attend(q[-1:].contiguous(), [0, 1], [limit - 1], path=path, threads=2)
    assert torch.equal(last[0], whole[-1])
    expected = memory.formula(q[-1:], [0, 1], [limit - 1])
    assert (last.double() - expected).abs().max().item() <= tolerance(q_dtype, expected)


@st.composite
def cuts(draw):
    """A batch, and how to cut it otherwise."""
    lengths = draw(st.lists(st.one_of(st.integers(1, 200), st.sampled_from([*BOUNDARIES, 2100])), min_size=1, max_size=3))
    counts = [draw(st.integers(1, min(n, 70))) for n in lengths]
    return {
        "lengths": lengths,
        "counts": counts,
        "chunk": draw(st.integers(1, 25)),
        "path": draw(st.sampled_from(PATHS)),
        "storage": draw(st.sampled_from(STORAGES)),
        "dim": draw(st.sampled_from([16, 24, 40, 64, 72, 80, 96, 128, 256])),
        "kv_heads": draw(st.integers(1, 2)),
        "group": draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8])),
        "window": draw(st.sampled_from([0, 0, 0, 1, 7, 16, 63, 64, 150, 1024])),
        "blocks": draw(st.permutations([16, 32, 64, 128]))[:2],
        "threads": draw(st.integers(1, 3)),
    }


@settings(max_examples=80, deadline=None)
@given(cuts())
def test_bits_do_not_depend_on_the_cut(case):
    """A batch, against its sequences one by one, in chunks, in other memory with other leftovers, by another team."""
    kv_dtype, q_dtype = case["storage"]
    lengths, counts, path, window = case["lengths"], case["counts"], case["path"], case["window"]
    memory = Sequences(lengths, case["kv_heads"], case["dim"], kv_dtype, block_size=case["blocks"][0])
    other = Sequences(
        lengths, case["kv_heads"], case["dim"], kv_dtype, block_size=case["blocks"][1], poison=3e38, layout="contiguous", kv=memory.kv
    )
    q_start, start = starts(counts), [n - c for n, c in zip(lengths, counts, strict=True)]
    q = normal(q_start[-1], case["kv_heads"] * case["group"], case["dim"], seed=7, dtype=q_dtype) * 2
    whole = memory.attend(q, q_start, start, path=path, window=window)
    assert not whole.isnan().any()
    for s, count in enumerate(counts):
        for low in range(0, count, case["chunk"]):
            high = min(low + case["chunk"], count)
            rows = slice(q_start[s] + low, q_start[s] + high)
            part = other.attend(
                q[rows].contiguous(), [0, high - low], [start[s] + low], path=path, rows=[s], window=window, threads=case["threads"]
            )
            assert torch.equal(part, whole[rows])


@each_path
@each_storage
def test_every_number_of_rows_gives_the_bits_of_one(path, kv_dtype, q_dtype):
    """Chunks of 1 to 7 tokens that cross the end of a group, of a segment, and of nothing."""
    memory = Sequences([1040], 1, 40, kv_dtype)
    for first in (60, 96, 1021):
        q = normal(7, 1, 40, seed=first, dtype=q_dtype)
        alone = [memory.attend(q[i : i + 1].contiguous(), [0, 1], [first + i], path=path) for i in range(7)]
        for n in range(2, 8):
            assert torch.equal(memory.attend(q[:n].contiguous(), [0, n], [first], path=path), torch.cat(alone[:n]))


@each_path
@each_storage
@pytest.mark.parametrize("poison", [NAN, float("inf"), 3e38])
def test_what_a_row_does_not_see_does_not_matter(path, kv_dtype, q_dtype, poison):
    """Later tokens (a rejected draft, a neighbour's chunk) and tokens before the window, at odd and even limits."""
    clean = Sequences([200], 2, 24, kv_dtype, poison=0.0)
    q = normal(6, 4, 24, seed=11, dtype=q_dtype)
    for first, window in ((0, 0), (63, 0), (100, 0), (101, 33), (127, 64), (130, 5)):
        count = 6 if window == 0 else 1
        expected = clean.attend(q[:count].contiguous(), [0, count], [first], path=path, window=window)
        unseen = {0: (first + count, 200)}
        dirty = Sequences([200], 2, 24, kv_dtype, poison=poison, kv=clean.kv, unseen=unseen, seed=1)
        assert torch.equal(dirty.attend(q[:count].contiguous(), [0, count], [first], path=path, window=window), expected)
        if window:
            dirty = Sequences([200], 2, 24, kv_dtype, poison=poison, kv=clean.kv, unseen={0: (0, first + 1 - window)}, seed=1)
            assert torch.equal(dirty.attend(q[:1].contiguous(), [0, 1], [first], path=path, window=window), expected)


@each_path
@pytest.mark.parametrize(("kv_dtype", "q_dtype"), [(F32, F32), (BF16, BF16)], ids=["float32", "bfloat16"])
def test_a_row_does_not_see_what_its_neighbours_see(path, kv_dtype, q_dtype):
    """Rows of one chunk: a NaN at position p reaches the rows from p on and no row before it."""
    k, v = normal(80, 1, 16, dtype=kv_dtype), normal(80, 1, 16, seed=1, dtype=kv_dtype)
    q = normal(80, 2, 16, seed=2, dtype=q_dtype)
    clean = Sequences([80], 1, 16, kv_dtype, kv=[(k, v)]).attend(q, [0, 80], [0], path=path)
    for p in (1, 2, 17, 62, 63, 64, 70):
        dirty = Sequences([80], 1, 16, kv_dtype, kv=[(k, v)], unseen={0: (p, p + 1)}).attend(q, [0, 80], [0], path=path)
        assert torch.equal(dirty[:p], clean[:p])
        assert dirty[p:].isnan().all()


@each_path
@pytest.mark.parametrize(("kv_dtype", "q_dtype"), [(F32, F32), (BF16, BF16), (F16, F32)], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("threads", [2, 3])
def test_a_team_splits_long_contexts_without_a_trace(path, kv_dtype, q_dtype, threads):
    """A long decode, verification rows over a long context, a prompt, and short decodes; one thread never splits, a team does."""
    lengths, counts = [5000, 2100, 90, 40, 3000], [1, 4, 90, 1, 1]
    memory = Sequences(lengths, 2, 48, kv_dtype)
    q_start, start = starts(counts), [n - c for n, c in zip(lengths, counts, strict=True)]
    q = normal(q_start[-1], 6, 48, seed=4, dtype=q_dtype)
    one = memory.attend(q, q_start, start, path=path)
    assert torch.equal(memory.attend(q, q_start, start, path=path, threads=threads), one)
    alone = memory.attend(q[:1].contiguous(), [0, 1], [4999], path=path, threads=threads)
    assert torch.equal(alone, one[:1])


@each_path
@each_storage
@pytest.mark.parametrize("window", [0, 20, 65])
def test_a_neighbour_full_of_nan_does_not_matter(path, kv_dtype, q_dtype, window):
    """Its rows come first, so its sums lie in the buffers when the other rows begin; with a window of 65 rows begin apart."""
    clean = Sequences([150, 141], 1, 24, kv_dtype)
    dirty = Sequences([150, 141], 1, 24, kv_dtype, kv=clean.kv, unseen={0: (0, 150)})
    q = normal(250, 3, 24, seed=6, dtype=q_dtype)
    beside, alone = (m.attend(q, [0, 150, 250], [0, 41], path=path, window=window) for m in (dirty, clean))
    assert beside[:150].isnan().all()
    assert torch.equal(beside[150:], alone[150:])


@each_path
def test_the_order_of_sequences_and_rows_without_tokens_change_nothing(path):
    memory = Sequences([30, 70, 20], 1, 32, F32)
    q = normal(12, 2, 32, seed=8)
    straight = memory.attend(q, [0, 5, 5, 12], [25, 69, 13], path=path)
    turned = memory.attend(torch.cat([q[5:], q[:5]]), [0, 7, 12], [13, 25], path=path, rows=[2, 0])
    assert torch.equal(torch.cat([turned[7:], turned[:7]]), straight)


@each_path
@pytest.mark.parametrize(("kv_dtype", "q_dtype"), [(F32, F32), (BF16, BF16)], ids=["float32", "bfloat16"])
def test_extreme_scores(path, kv_dtype, q_dtype):
    n = 1500
    v = normal(n, 1, 16, seed=1, dtype=kv_dtype)
    # one token at +1e30, all others at -1e30: its V comes out exactly
    for winner in (0, 15, 700, n - 1):
        k = torch.full((n, 1, 16), -1e15, dtype=kv_dtype)
        k[winner] = 1e15
        q = torch.full((1, 2, 16), 1e15, dtype=q_dtype)
        found = Sequences([n], 1, 16, kv_dtype, kv=[(k, v)]).attend(q, [0, 1], [n - 1], path=path, scale=1 / 16)
        assert torch.equal(found, v[winner].to(q_dtype).expand(1, 2, 16))
    # equal scores, however large: the mean
    for size in (0.0, 1e15, -1e15):
        k = torch.full((n, 1, 16), size, dtype=kv_dtype)
        found = Sequences([n], 1, 16, kv_dtype, kv=[(k, v)]).attend(torch.ones(1, 2, 16, dtype=q_dtype), [0, 1], [n - 1], path=path)
        expected = v.double().mean(0)
        assert (found.double() - expected).abs().max() <= (1e-6 if q_dtype == F32 else 2**-9)


@each_path
@each_storage
def test_a_context_of_one_token_returns_its_value(path, kv_dtype, q_dtype):
    memory = Sequences([1], 2, 72, kv_dtype)
    found = memory.attend(normal(1, 4, 72, dtype=q_dtype), [0, 1], [0], path=path)
    assert torch.equal(found, memory.kv[0][1].repeat_interleave(2, 1).to(q_dtype))
