"""Mixtures of experts: the reference's values, the same bits whatever rows share an expert, ties, NaN, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.core.errors import InvariantError
from octavo.kernels.executor import Batch
from octavo.kernels.native import NativeExecutor, available_paths
from octavo.kernels.program import Buffer, Embed, Experts, Linear, Matrix, Norm, Program
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.kernels.sizes import workspace_bytes_for
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

PATHS = available_paths()
F32, BF16 = torch.float32, torch.bfloat16
VOCAB, HIDDEN, INNER, POSITIONS, ROWS = 90, 40, 21, 64, 64
SPEC = MemorySpec((AttentionLayerSpec(1, 16),), "float32", 16)
each_path = pytest.mark.parametrize("path", PATHS)
each_dtype = pytest.mark.parametrize("dtype", [F32, BF16])


def make_program(dtype=F32, *, count=7, top_k=3, normalize=True, router=None, table=None) -> Program:
    """Token rows, normed, through one mixture, and then as they are to the logits."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    up = tuple(Matrix.of(random(2 * INNER, HIDDEN), gated=True) for _ in range(count))
    down = tuple(Matrix.of(random(HIDDEN, INNER)) for _ in range(count))
    rows = random(VOCAB, HIDDEN) * HIDDEN**0.5 if table is None else table
    scorer = 3 * random(count, HIDDEN) if router is None else router
    body = (
        Embed(Matrix.of(rows.to(dtype)), "hidden"),
        Norm("rms", "hidden", "normed", torch.ones(HIDDEN), 1e-5),
        Linear("normed", "scores", Matrix.of(scorer)),
        Experts("normed", "scores", "hidden", "gathered", "inner", "parts", up, down, top_k, normalize),
    )
    hidden, normed = Buffer("hidden", HIDDEN, "float32"), Buffer("normed", HIDDEN, "compute")
    buffers = (
        hidden,
        normed,
        Buffer("scores", count, "float32"),
        Buffer("gathered", HIDDEN, "compute", top_k),
        Buffer("inner", INNER, "compute", top_k),
        Buffer("parts", HIDDEN, "float32", top_k),
    )
    head = (
        Norm("rms", "hidden", "normed", torch.full((HIDDEN,), 2.0**50), 2.0**100),
        Linear("normed", "logits", Matrix.of(torch.eye(HIDDEN))),
    )
    return Program(buffers, body, (hidden, normed, Buffer("logits", HIDDEN, "float32")), head, HIDDEN, POSITIONS, dtype)


def run(executor, ids):
    """Hidden rows after the mixture, of tokens that are sequences of their own."""
    count = len(ids)
    zeros = np.zeros(count, dtype=np.int32)
    executor.forward(
        Batch(
            token_ids=np.array(ids, dtype=np.int32),
            q_start=np.arange(count + 1, dtype=np.int32),
            start=zeros,
            write=zeros.astype(np.uint8),
            row=zeros,
            tables=np.zeros((1, 1), dtype=np.int32),
        )
    )
    return executor.logits(np.arange(count, dtype=np.int32)).clone()


def make(program, kind=NativeExecutor, **options):
    arena = torch.zeros(SPEC.block_bytes, dtype=torch.uint8)
    return kind(program, SPEC, arena, **{"max_tokens": ROWS, "max_logit_rows": ROWS, "threads": 2} | options)


IDS = (np.arange(ROWS) * 37 % HIDDEN).tolist()


@each_path
@each_dtype
@pytest.mark.parametrize(("count", "top_k", "normalize"), [(7, 3, True), (7, 3, False), (1, 1, True), (4, 4, False), (33, 2, True)])
def test_values_are_the_references(path, dtype, count, top_k, normalize):
    program = make_program(dtype, count=count, top_k=top_k, normalize=normalize)
    found, expected = run(make(program, path=path), IDS), run(make(program, ReferenceExecutor), IDS)
    assert expected.abs().max() > 1
    assert (found - expected).abs().max() < (1e-5 if dtype == F32 else 0.03)


@each_path
@each_dtype
def test_a_row_does_not_depend_on_who_shares_its_experts(path, dtype):
    program = make_program(dtype)
    whole = run(make(program, path=path, threads=1), IDS)
    for threads in (1, 2, 3):
        executor = make(program, path=path, threads=threads)
        rows = [run(executor, IDS[i : i + 1]) for i in range(3)] + [run(executor, IDS[3:10]), run(executor, IDS[10:])]
        assert torch.equal(torch.cat(rows), whole), threads
        assert torch.equal(run(executor, IDS[::-1]).flip(0), whole), threads


@each_path
def test_ties_go_to_the_lower_expert(path):
    """All scores are equal, so every row goes through the first ones."""
    flat = make_program(count=6, top_k=2, router=torch.zeros(6, HIDDEN))
    op = flat.body[-1]
    first_two = replace(op, up=op.up[:2], down=op.down[:2])
    buffers = tuple(replace(buffer, width=2) if buffer.name == "scores" else buffer for buffer in flat.buffers)
    only_two = replace(
        flat, buffers=buffers, body=(*flat.body[:2], Linear("normed", "scores", Matrix.of(torch.zeros(2, HIDDEN))), first_two)
    )
    assert torch.equal(run(make(flat, path=path), IDS), run(make(only_two, path=path), IDS))


@each_path
def test_a_row_of_nan_is_nan_alone(path):
    table = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2))
    clean = run(make(make_program(table=table), path=path), IDS)
    dirty = table.clone()
    dirty[IDS[5]] = float("nan")
    found = run(make(make_program(table=dirty), path=path), IDS)
    hit = torch.tensor([token == IDS[5] for token in IDS])
    assert found[hit].isnan().all()
    assert torch.equal(found[~hit], clean[~hit])


@each_dtype
def test_what_an_executor_takes_is_known_before(dtype):
    program = make_program(dtype)
    assert make(program).workspace_bytes() == workspace_bytes_for(program, SPEC, ROWS, ROWS, 2)
    assert set(make(program).seconds()) == set(make(program, ReferenceExecutor).seconds())


def test_time_is_accounted_for():
    executor = make(make_program())
    run(executor, IDS)
    assert executor.seconds()["experts"] > 0


def test_a_mixture_that_contradicts_itself_is_refused():
    program = make_program()
    op = program.body[-1]
    wrong = {
        "not 7 alike": {"down": (*op.down[:-1], Matrix.of(torch.zeros(HIDDEN, INNER + 1)))},
        "8 of 7 experts": {"top_k": 8},
        "has 3 rows a token; 2 are needed": {"top_k": 2},
        "the buffer 'scores'": {"up": op.up[:-1], "down": op.down[:-1]},
    }
    for message, changes in wrong.items():
        with pytest.raises(InvariantError, match=message):
            make(replace(program, body=(*program.body[:-1], replace(op, **changes))))
