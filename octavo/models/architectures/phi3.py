"""Phi-3 (Abdin et al. 2024): Llama with fused products, part of each head rotating, and longrope."""

from typing import TYPE_CHECKING

from octavo.models import gguf_config, hf_config
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder

# Its first files called longrope by the name of its predecessor, or yarn.
LONGROPE = {"su": "longrope", "yarn": "longrope"}


def read_hf(fields: Fields) -> ModelConfig:
    head_dim = hf_config.divide_heads(fields.source, fields.size("hidden_size"), fields.size("num_attention_heads"))
    rope = hf_config.rope_config(fields, head_dim, fields.size("max_position_embeddings"), aliases=LONGROPE)
    return hf_config.decoder_config(fields, "phi3", rope=rope, windows=hf_config.sliding_windows(fields))


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    keys = file.fields.under("phi3.")
    windows: tuple[int | None, ...] = ()
    if keys.whole("attention.sliding_window", default=0):
        windows = (keys.size("attention.sliding_window"),) * gguf_config.num_layers(keys)
    return gguf_config.decoder_config(file, "phi3", windows=windows)


def build(decoder: "Decoder") -> None:
    decoder.embed("model.embed_tokens")
    for layer in range(decoder.config.num_layers):
        name = f"model.layers.{layer}"
        heads = f"{name}.self_attn"
        decoder.attention(layer, norm=f"{name}.input_layernorm", qkv=(f"{heads}.qkv_proj",), out=f"{heads}.o_proj")
        decoder.mlp(norm=f"{name}.post_attention_layernorm", up=(f"{name}.mlp.gate_up_proj",), down=f"{name}.mlp.down_proj")
    decoder.head(norm="model.norm", lm_head="lm_head")


ARCHITECTURE = Architecture(
    name="phi3",
    hf_classes=("Phi3ForCausalLM",),
    model_types=("phi3",),
    read_hf=read_hf,
    build=build,
    gguf_names=("phi3",),
    read_gguf=read_gguf,
    gguf_tensors={
        **gguf_config.LLAMA_TENSORS,
        "model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv",
        "model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
    },
)
