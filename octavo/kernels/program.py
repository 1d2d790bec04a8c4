"""`Program`: a model's forward pass as a list of operations, bound once and run once a step.

A model (`octavo/models/`) describes itself with the six operations below; an *executor* carries the list out: the compiled one in a
single call per step (so no interpreter lock is taken between operations, and no argument is passed twice), the reference one in
plain torch, operation by operation.  A device gets its own executor behind the same list.

Buffers hold one row per token: float32, or (kind "compute") in the model's compute dtype, which is float32 or bfloat16.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

Activation = Literal["none", "relu", "silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of `width` elements.  kind: "float32", or "compute" for the model's compute dtype.  rows: of each token."""

    name: str
    width: int
    kind: Literal["float32", "compute"]
    rows: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight of a product.  An `Embed` that is tied to a product takes this same object.

    shape: (out_features, in_features).  read: gives the rows, [out_features, in_features] of any float dtype, and may fetch them anew
    from the checkpoint at each call: an executor calls it once and packs what comes, so that one raw matrix exists at a time.
    gated: the first half of the rows is `gate`, the second `up`.
    """

    shape: tuple[int, int]
    read: Callable[[], torch.Tensor]
    gated: bool = False

    @classmethod
    def of(cls, weight: torch.Tensor, gated: bool = False) -> "Matrix":
        """Of rows that are in memory already, and stay there as long as this object."""
        return cls((weight.shape[0], weight.shape[1]), lambda: weight, gated)


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """out[row] = table[token] * scale (+ positions[position + position_offset]).  out: a float32 buffer."""

    table: Matrix
    out: str
    scale: float = 1.0
    positions: torch.Tensor | None = None
    position_offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMSNorm (Zhang & Sennrich 2019) or LayerNorm of a float32 buffer.  weight, bias: float32 [width]."""

    kind: Literal["rms", "layer"]
    x: str
    out: str
    weight: torch.Tensor
    eps: float
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """out = activation(x @ weight.T + bias), or out += x @ weight.T + bias with `accumulate` (out: float32).

    x: a compute buffer.  With a gated matrix: out = activation(gate) * up.  out: float32 or compute.
    """

    x: str
    out: str
    matrix: Matrix
    bias: torch.Tensor | None = None
    activation: Activation = "none"
    accumulate: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """out += for each row, the sum over the experts it chooses of share * down(activation(gate) * up) (Shazeer et al. 2017).

    scores: float32 buffer, one score an expert.  A row chooses the `top_k` highest (ties: the lower expert); its shares are what a
    softmax over all scores gives them, and with `normalize` divided by their own sum.
    x: compute buffer.  out: float32.  gathered, inner (compute) and parts (float32): buffers of `top_k` rows a token, for the rows
    of each expert side by side.
    up: gated, (2 * inner width, x width) each.  down: (out width, inner width) each.
    """

    x: str
    scores: str
    out: str
    gathered: str
    inner: str
    parts: str
    up: tuple[Matrix, ...]
    down: tuple[Matrix, ...]
    top_k: int
    normalize: bool
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary embedding (Su et al. 2021) with fixed tables.  cos, sin: float32 [positions, rotary_dim / 2], scaling included.

    The first rotary_dim elements of a head turn, the first half of them against the second.
    """

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AppendKV:
    """Split qkv (float32 rows of q heads, k heads, v heads); norm (optional) and rotate q and k; write k and v to the cache, q to `q`.

    layer: index into the memory spec's layers.  q_norm, k_norm: float32 [head_dim], RMSNorm weights.
    """

    qkv: str
    q: str
    layer: int
    num_heads: int
    rope: Rope | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Causal attention of q's rows over their own sequence's cache.  q, out: compute buffers of num_heads * head_dim."""

    q: str
    out: str
    layer: int
    num_heads: int
    scale: float


Op = Embed | Norm | Linear | Experts | AppendKV | Attention


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """body: from token ids to the buffer `hidden`.  head: from `hidden` rows (gathered) to the float32 buffer `logits`.

    The head's buffers are named in `head_buffers` (the gathered rows come as `hidden`); its rows are those that need logits.
    max_positions: positions that rotary or learned tables cover.
    """

    buffers: tuple[Buffer, ...]
    body: tuple[Op, ...]
    head_buffers: tuple[Buffer, ...]
    head: tuple[Op, ...]
    vocab_size: int
    max_positions: int
    compute_dtype: torch.dtype = field(default=torch.float32)

    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that products read, once, in the order in which a step reads them."""
        found: dict[int, Matrix] = {}
        for op in self.body + self.head:
            if isinstance(op, Linear):
                found.setdefault(id(op.matrix), op.matrix)
            elif isinstance(op, Experts):
                found.update((id(matrix), matrix) for matrix in op.up + op.down)
        return tuple(found.values())
