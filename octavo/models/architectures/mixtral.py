"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer."""

from typing import TYPE_CHECKING

from octavo.models import hf_config
from octavo.models.architectures import llama
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.experts import ExpertsConfig
from octavo.spec.model import ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder


def read_hf(fields: Fields) -> ModelConfig:
    experts = ExpertsConfig(
        source=fields.source,
        count=fields.size("num_local_experts"),
        per_token=fields.size("num_experts_per_tok"),
        inner_size=fields.size("intermediate_size"),
        normalize=True,
        layers=(True,) * hf_config.num_layers(fields),
    )
    return hf_config.decoder_config(fields, "mixtral", windows=hf_config.sliding_windows(fields), experts=experts)


def build(decoder: "Decoder") -> None:
    decoder.embed("model.embed_tokens")
    for layer in range(decoder.config.num_layers):
        llama.attention(decoder, layer)
        name = f"model.layers.{layer}"
        moe = f"{name}.block_sparse_moe"
        decoder.experts(
            norm=f"{name}.post_attention_layernorm", router=f"{moe}.gate", expert=f"{moe}.experts.{{}}", gate="w1", up="w3", down="w2"
        )
    decoder.head(norm="model.norm", lm_head="lm_head")


ARCHITECTURE = Architecture(name="mixtral", hf_classes=("MixtralForCausalLM",), model_types=("mixtral",), read_hf=read_hf, build=build)
