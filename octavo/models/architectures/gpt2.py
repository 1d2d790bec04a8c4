"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, fused q, k and v, biases everywhere."""

from typing import TYPE_CHECKING, Any

from octavo.core.errors import UnsupportedModelError
from octavo.models import gguf_config, hf_config
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import LIMITS, ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder

# The config's own names, as the others have them.
NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
SHAPE: dict[str, Any] = {"rope": None, "norm": "layer", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}


def read_hf(fields: Fields) -> ModelConfig:
    if fields.flag("add_cross_attention", default=False):
        raise UnsupportedModelError(f"{fields.source}: add_cross_attention isn't known; Octavo generates with decoders alone")
    hidden, layers = fields.size("n_embd"), fields.size("n_layer", limit=LIMITS["num_layers"])
    head_dim = hf_config.divide_heads(fields.source, hidden, fields.size("n_head"))
    scale = head_dim**-0.5 if fields.flag("scale_attn_weights", default=True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", default=False)
    defaults = {"n_inner": 4 * hidden, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    present = {key: value for key, value in fields.values.items() if value is not None}
    renamed = {name: (defaults | present)[own] for name, own in NAMES.items() if own in defaults | present}
    return hf_config.decoder_config(
        Fields({**present, **renamed}, fields.source),
        "gpt2",
        attention_scales=tuple(scale / (layer + 1 if by_layer else 1) for layer in range(layers)),
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
        in_out_linears=True,
        **SHAPE,
    )


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    """GGUF files hold the products' weights as [out, in]."""
    return gguf_config.decoder_config(file, "gpt2", activation="gelu_tanh", **SHAPE)


def build(decoder: "Decoder") -> None:
    decoder.embed("transformer.wte", positions="transformer.wpe")
    for layer in range(decoder.config.num_layers):
        name = f"transformer.h.{layer}"
        decoder.attention(layer, norm=f"{name}.ln_1", qkv=(f"{name}.attn.c_attn",), out=f"{name}.attn.c_proj")
        decoder.mlp(norm=f"{name}.ln_2", up=(f"{name}.mlp.c_fc",), down=f"{name}.mlp.c_proj")
    decoder.head(norm="transformer.ln_f", lm_head="lm_head")


ARCHITECTURE = Architecture(
    name="gpt2",
    hf_classes=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    read_hf=read_hf,
    build=build,
    gguf_names=("gpt2",),
    read_gguf=read_gguf,
    gguf_tensors={
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.{}.ln_1": "blk.{}.attn_norm",
        "transformer.h.{}.attn.c_attn": "blk.{}.attn_qkv",
        "transformer.h.{}.attn.c_proj": "blk.{}.attn_output",
        "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
        "transformer.h.{}.mlp.c_fc": "blk.{}.ffn_up",
        "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
    },
)
