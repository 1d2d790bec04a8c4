"""The kernels in plain torch: the definition of each operation, and the oracle for the compiled ones.

Everything here computes in float32, takes any float dtype, and leaves rounding to the caller.  Values are promised, bits are not
(torch's products may sum in another order for another number of rows).

K and V live in an arena of blocks, a block in pages of `page_tokens` tokens (`octavo/spec/memory.py`).  Inside a page a layer has
first K, per head [head_dim / pair][page_tokens][pair], then V, per head [page_tokens / pair][head_dim][pair].  pair is 2 for 16-bit
storage and 1 for float32, so that one 32-bit lane of a vector register holds what one dot-product instruction eats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from octavo.kernels.program import Activation, Rope
from octavo.spec.memory import DTYPE_BYTES, MemorySpec

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUERY_TILE = 128  # rows of one attention product: bounds the scores' memory, changes no value


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's K and V as views that alias the arena.

    keys: [blocks, pages, page_tokens, kv_heads, head_dim / pair, pair].
    values: [blocks, pages, page_tokens / pair, pair, kv_heads, head_dim].
    """

    keys: torch.Tensor
    values: torch.Tensor
    block_size: int
    page_tokens: int


def paged_layer(arena: torch.Tensor, spec: MemorySpec, layer: int) -> PagedLayer:
    """Views of `layer` in `arena` (uint8 [num_blocks * block_bytes], contiguous); nothing is copied."""
    shape, tokens = spec.layers[layer], spec.page_tokens
    dtype = TORCH_DTYPES[spec.kv_dtype]
    itemsize = DTYPE_BYTES[spec.kv_dtype]
    pair = 4 // itemsize
    row_pair = min(pair, tokens)  # a page of a single token has no pair of rows
    heads, dim = shape.num_kv_heads, shape.head_dim
    pages = arena.view(dtype).view(-1, spec.block_size // tokens, spec.page_bytes // itemsize)
    start, size = spec.layer_offset(layer) // itemsize, heads * dim * tokens
    keys = pages[..., start : start + size].view(*pages.shape[:2], heads, dim // pair, tokens, pair)
    values = pages[..., start + size : start + 2 * size].view(*pages.shape[:2], heads, tokens // row_pair, dim, row_pair)
    return PagedLayer(keys.permute(0, 1, 4, 2, 3, 5), values.permute(0, 1, 3, 5, 2, 4), spec.block_size, tokens)


def write_kv(layer: PagedLayer, blocks: torch.Tensor, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store rows of k and v (each [n, kv_heads, head_dim]) at `positions`, in `blocks` (each [n]).  Mutates the arena."""
    place = (blocks, *_in_block(layer, positions))
    pair_of_v = layer.values.shape[3]
    layer.keys[place] = k.reshape(-1, *layer.keys.shape[3:]).to(layer.keys.dtype)
    blocks, page, row = place
    layer.values[blocks, page, row // pair_of_v, row % pair_of_v] = v.to(layer.values.dtype)


def read_kv(layer: PagedLayer, blocks: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V at `positions`, float32 [n, kv_heads, head_dim] each; arguments as in `write_kv`."""
    page, row = _in_block(layer, positions)
    pair_of_v = layer.values.shape[3]
    keys = layer.keys[blocks, page, row].flatten(-2)
    values = layer.values[blocks, page, row // pair_of_v, row % pair_of_v]
    return keys.float(), values.float()


def _in_block(layer: PagedLayer, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inside = positions % layer.block_size
    return inside // layer.page_tokens, inside % layer.page_tokens


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, q_start: int, k_start: int, scale: float, window: int | None
) -> torch.Tensor:
    """Causal softmax(q k^T * scale) v (Vaswani et al. 2017, section 3.2.1) with grouped heads (Ainslie et al. 2023).

    q: float32 [rows, heads, head_dim], at positions q_start, q_start + 1, ...  k, v: float32 [keys, kv_heads, head_dim], at positions
    k_start, k_start + 1, ...  A row at position p sees the keys at p and before; with a window, only p - window + 1 to p.
    Returns float32 [rows, heads, head_dim].  What a row doesn't see has no influence, NaN included.
    """
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    group = heads // kv_heads
    positions = torch.arange(q_start, q_start + rows).unsqueeze(1) - torch.arange(k_start, k_start + keys)  # distance back, per pair
    unseen = positions < 0
    if window is not None:
        unseen |= positions >= window
    k_of_head, v_of_head = k.permute(1, 2, 0), v.transpose(0, 1)  # [kv_heads, dim, keys], [kv_heads, keys, dim]
    all_finite = bool(torch.isfinite(v).all())
    out = torch.empty(rows, heads, dim)
    for low in range(0, rows, QUERY_TILE):
        tile = slice(low, min(low + QUERY_TILE, rows))
        tile_q = q[tile].reshape(-1, kv_heads, group, dim).permute(1, 2, 0, 3).flatten(1, 2)  # [kv_heads, group * rows, dim]
        scores = (tile_q @ k_of_head).mul_(scale).view(kv_heads, group, -1, keys)
        weights = scores.masked_fill_(unseen[tile], -torch.inf).softmax(-1)
        if all_finite:
            mixed = (weights.flatten(1, 2) @ v_of_head).view(kv_heads, group, -1, dim)
        else:  # 0 * NaN is NaN: let each row meet only the values that it sees
            mixed = torch.stack([weights[:, :, r, ~hidden] @ v_of_head[:, ~hidden] for r, hidden in enumerate(unseen[tile])], dim=2)
        out[tile] = mixed.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def rotate(x: torch.Tensor, positions: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary embedding of x (float32 [n, heads, head_dim]) at `positions` ([n]); half against half, as `Rope` says."""
    half = rope.cos.shape[-1]
    cos, sin = rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang & Sennrich 2019, equation 4).  Returns float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al. 2016).  Returns float32."""
    return functional.layer_norm(x.float(), weight.shape, weight, bias, eps)


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The named activation of x, element by element.  "gelu" is exact, "gelu_tanh" the tanh form (Hendrycks & Gimpel 2016)."""
    match activation:
        case "none":
            return x
        case "relu":
            return functional.relu(x)
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation, *, gated: bool = False
) -> torch.Tensor:
    """activation(x @ weight.T + bias), or activation(gate) * up with the halves of a gated product (Shazeer 2020).

    x: [n, in].  weight: [out, in].  bias: [out] or None.  Returns float32 [n, out], or [n, out / 2] when gated.
    """
    product = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    if not gated:
        return activate(product, activation)
    gate, up = product.chunk(2, dim=-1)
    return activate(gate, activation) * up


def experts(
    x: torch.Tensor,
    scores: torch.Tensor,
    up: Sequence[torch.Tensor],
    down: Sequence[torch.Tensor],
    *,
    top_k: int,
    normalize: bool,
    activation: Activation,
) -> torch.Tensor:
    """The sum over each row's top_k experts of share * down(activation(gate) * up) (Shazeer et al. 2017).

    x: [n, width].  scores: float32 [n, experts].  up: [2 * inner, width] each.  down: [width, inner] each.
    Returns float32 [n, width].
    """
    shares, chosen = scores.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    shares, chosen = shares[:, :top_k], chosen[:, :top_k]
    if normalize:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    out = torch.zeros(x.shape[0], down[0].shape[0])
    for expert in range(len(up)):
        rows, choice = torch.where(chosen == expert)
        inner = linear(x[rows], up[expert], None, activation, gated=True).to(x.dtype)
        out.index_add_(0, rows, linear(inner, down[expert], None, "none") * shares[rows, choice, None])
    return out


def embed(
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    scale: float = 1.0,
    learned: torch.Tensor | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """table[token] * scale (+ learned[position + offset]): float32 [n, width] from token_ids and positions of [n]."""
    rows = table[token_ids].float() * scale
    return rows if learned is None else rows + learned[positions + offset].float()
