"""`ModelConfig`: a decoder's shape, whatever file it was read from.  No torch: planning asks it too."""

import math
from dataclasses import dataclass
from typing import Literal

from octavo.core.errors import ModelLoadError
from octavo.spec.experts import ExpertsConfig
from octavo.spec.memory import AttentionLayerSpec
from octavo.spec.rope import RopeConfig

Activation = Literal["none", "relu", "silu", "gelu", "gelu_tanh"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]

# Far above any model, and small enough that no product of two overflows or takes the machine's memory by surprise.
LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "embed_size": 1 << 18,
    "num_layers": 1 << 12,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "intermediate_size": 1 << 20,
    "max_positions": 1 << 28,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only transformer.

    source: the file it was read from, for messages.  architecture: its name in the registry ("llama").
    embed_size: width of the token table when it isn't hidden_size (OPT-350m).
    norm: "rms" or "layer", with `norm_eps`; norm_offset is added to its weights (Gemma stores w - 1).
    pre_norm: the norm stands before attention and MLP (else after their residual); final_norm: one stands before the head.
    gated: the MLP is act(gate) * up.  rope: None where positions are learned; position_offset: rows before position 0.
    windows: per layer, the positions that a query sees (None: all).  attention_scales: per layer, what q k^T is multiplied with.
    qkv_bias, out_bias, mlp_bias: products that add a bias.  qk_norm: RMSNorm of each q and k head.
    experts: None where every layer has one MLP.
    in_out_linears: the checkpoint stores a product's weight as [in, out] (GPT-2's Conv1D).

    Raises ModelLoadError naming the file, the field and the limit.
    """

    source: str
    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    embed_size: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    pre_norm: bool = True
    final_norm: bool = True
    activation: Activation = "silu"
    gated: bool = True
    rope: RopeConfig | None = None
    position_offset: int = 0
    windows: tuple[int | None, ...] = ()
    attention_scales: tuple[float, ...] = ()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: ExpertsConfig | None = None
    embed_scale: float = 1.0
    in_out_linears: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise ModelLoadError(f"{self.source}: {name}={value} must be at least 1 and at most {limit}")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"{self.source}: {self.num_heads} heads can't be shared out over {self.num_kv_heads} KV heads")
        if self.rope is not None and self.rope.rotary_dim > self.head_dim:
            raise ModelLoadError(f"{self.source}: {self.rope.rotary_dim} elements of a head rotate; it has {self.head_dim}")
        if not math.isfinite(self.norm_eps) or self.norm_eps < 0:
            raise ModelLoadError(f"{self.source}: norm_eps={self.norm_eps} must be finite and not negative")
        for name in ("windows", "attention_scales"):
            if len(getattr(self, name)) not in (0, self.num_layers):
                raise ModelLoadError(f"{self.source}: {len(getattr(self, name))} {name} for {self.num_layers} layers")
        for window in self.windows:
            if window is not None and window < 1:
                raise ModelLoadError(f"{self.source}: an attention window of {window} positions; it must be at least 1")
        for token in self.eos_token_ids:
            if token < 0:
                raise ModelLoadError(f"{self.source}: the end-of-sequence id {token} is negative")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def longest(self) -> int:
        """The largest `max_model_len`: as declared, or as far as its scaled frequencies are meant to reach."""
        return max(self.max_positions, 0 if self.rope is None else self.rope.longest)

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def attention_scale(self, layer: int) -> float:
        return self.attention_scales[layer] if self.attention_scales else self.head_dim**-0.5

    def attention_layers(self) -> tuple[AttentionLayerSpec, ...]:
        """Each layer's share of a token's memory, in the order of the layers."""
        return tuple(AttentionLayerSpec(self.num_kv_heads, self.head_dim, self.window(i)) for i in range(self.num_layers))

    @property
    def num_parameters(self) -> int:
        """Weights of the products and tables (norms and biases, a thousandth of them, left out)."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        tables = self.vocab_size * self.embed_size * (1 if self.tie_embeddings else 2)
        learned = 0 if self.rope is not None else self.max_positions * self.hidden_size
        return self.num_layers * attention + self._inner_weights(active=False) + tables + learned

    def _inner_weights(self, *, active: bool) -> int:
        """Of the MLPs and experts of all layers.  active: only those that one token passes through."""
        mlp = self.hidden_size * self.intermediate_size * (3 if self.gated else 2)
        if self.experts is None:
            return self.num_layers * mlp
        mixture = self.experts.active_weights(self.hidden_size) if active else self.experts.weights(self.hidden_size)
        return sum(mixture if has_experts else mlp for has_experts in self.experts.layers)

    def relative_cost(self, position: int) -> float:
        """Arithmetic of the layers for the token at `position`, relative to the first one's: products are the same everywhere,
        attention grows with what comes before (Vaswani et al. 2017, table 1).  Windows bound it.
        """
        products = self.num_layers * self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        products += self._inner_weights(active=True)
        attended = sum(min(position, window or position) for window in self.windows) if self.windows else self.num_layers * position
        return 1.0 + 2 * self.query_size * attended / products

    @property
    def largest_matrix(self) -> int:
        """Weights of the largest one, as products of the same input are stacked."""
        inner = self.hidden_size * self.intermediate_size * (2 if self.gated else 1)
        return max(inner, self.hidden_size * (self.query_size + 2 * self.kv_size), self.vocab_size * self.embed_size)
