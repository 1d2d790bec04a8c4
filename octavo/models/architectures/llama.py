"""Llama (Touvron et al. 2023), and what its descendants share with it."""

from typing import TYPE_CHECKING

from octavo.models import gguf_config, hf_config
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder


def read_hf(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    return hf_config.decoder_config(fields, "llama", qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    return gguf_config.decoder_config(file, "llama")


def build(decoder: "Decoder") -> None:
    decoder.embed("model.embed_tokens")
    for layer in range(decoder.config.num_layers):
        attention(decoder, layer)
        mlp(decoder, layer)
    decoder.head(norm="model.norm", lm_head="lm_head")


def attention(decoder: "Decoder", layer: int) -> None:
    """A layer's attention under Llama's names."""
    name = f"model.layers.{layer}"
    heads = f"{name}.self_attn"
    decoder.attention(
        layer,
        norm=f"{name}.input_layernorm",
        qkv=(f"{heads}.q_proj", f"{heads}.k_proj", f"{heads}.v_proj"),
        out=f"{heads}.o_proj",
        head_norms=(f"{heads}.q_norm", f"{heads}.k_norm"),
    )


def mlp(decoder: "Decoder", layer: int) -> None:
    """A layer's MLP under Llama's names."""
    name = f"model.layers.{layer}"
    decoder.mlp(
        norm=f"{name}.post_attention_layernorm",
        up=(f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"),
        down=f"{name}.mlp.down_proj",
    )


ARCHITECTURE = Architecture(
    name="llama",
    hf_classes=("LlamaForCausalLM",),
    model_types=("llama",),
    read_hf=read_hf,
    build=build,
    gguf_names=("llama",),
    read_gguf=read_gguf,
    gguf_tensors=gguf_config.LLAMA_TENSORS,
    gguf_interleaves=True,
)
