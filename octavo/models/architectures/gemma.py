"""Gemma, the first (Gemma Team 2024): Llama with scaled embeddings, GELU gates, and norms that are stored as w - 1."""

import math

from octavo.core.errors import UnsupportedModelError
from octavo.models import gguf_config, hf_config
from octavo.models.architectures import llama
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig


def read_hf(fields: Fields) -> ModelConfig:
    if fields.flag("use_bidirectional_attention", default=False):
        raise UnsupportedModelError(
            f"{fields.source}: use_bidirectional_attention makes an encoder of it; Octavo generates with decoders"
        )
    bias = fields.flag("attention_bias", default=False)
    activation = hf_config.activation(fields, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    return hf_config.decoder_config(
        fields,
        "gemma",
        # Older files say "gelu" and mean the tanh form, with which the model was trained.
        activation="gelu_tanh" if activation == "gelu" else activation,
        embed_scale=math.sqrt(fields.size("hidden_size")),
        norm_offset=1.0,
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
        qkv_bias=bias,
        out_bias=bias,
    )


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    """GGUF files hold the norms' weights as they are applied."""
    scale = math.sqrt(file.fields.size("gemma.embedding_length"))
    return gguf_config.decoder_config(file, "gemma", activation="gelu_tanh", embed_scale=scale)


ARCHITECTURE = Architecture(
    name="gemma",
    hf_classes=("GemmaForCausalLM",),
    model_types=("gemma",),
    read_hf=read_hf,
    build=llama.build,
    gguf_names=("gemma",),
    read_gguf=read_gguf,
    gguf_tensors=gguf_config.LLAMA_TENSORS,
)
