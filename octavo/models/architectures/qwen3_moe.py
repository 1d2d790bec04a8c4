"""Qwen3-MoE (Yang et al. 2025): Qwen3 with a mixture of experts in most layers."""

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
    bias = fields.flag("attention_bias", default=False)
    experts = ExpertsConfig(
        source=fields.source,
        count=fields.size("num_experts", "num_local_experts"),
        per_token=fields.size("num_experts_per_tok"),
        inner_size=fields.size("moe_intermediate_size"),
        normalize=fields.flag("norm_topk_prob", default=False),
        layers=sparse_layers(fields),
    )
    return hf_config.decoder_config(
        fields, "qwen3_moe", qkv_bias=bias, out_bias=bias, qk_norm=True, windows=hf_config.switched_windows(fields), experts=experts
    )


def sparse_layers(fields: Fields) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer has experts, except those that `mlp_only_layers` lists."""
    step, dense = fields.size("decoder_sparse_step", default=1), set(fields.ids("mlp_only_layers"))
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(hf_config.num_layers(fields)))


def build(decoder: "Decoder") -> None:
    config = decoder.config
    decoder.embed("model.embed_tokens")
    for layer in range(config.num_layers):
        llama.attention(decoder, layer)
        name = f"model.layers.{layer}"
        if config.experts is not None and config.experts.layers[layer]:
            decoder.experts(
                norm=f"{name}.post_attention_layernorm",
                router=f"{name}.mlp.gate",
                expert=f"{name}.mlp.experts.{{}}",
                gate="gate_proj",
                up="up_proj",
                down="down_proj",
            )
        else:
            llama.mlp(decoder, layer)
    decoder.head(norm="model.norm", lm_head="lm_head")


ARCHITECTURE = Architecture(
    name="qwen3_moe", hf_classes=("Qwen3MoeForCausalLM",), model_types=("qwen3_moe",), read_hf=read_hf, build=build
)
