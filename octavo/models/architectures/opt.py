"""OPT (Zhang et al. 2022): learned positions from row 2, LayerNorm.  The 350m variant norms after the residual and projects."""

from typing import TYPE_CHECKING

from octavo.core.errors import UnsupportedModelError
from octavo.models import hf_config
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder


def read_hf(fields: Fields) -> ModelConfig:
    if not fields.flag("layer_norm_elementwise_affine", default=True):
        raise UnsupportedModelError(f"{fields.source}: layer_norm_elementwise_affine=false isn't known")
    bias = fields.flag("enable_bias", default=True)
    pre_norm = fields.flag("do_layer_norm_before", default=True)
    values = {"intermediate_size": fields.size("ffn_dim"), "hidden_act": fields.text("activation_function", default="relu")}
    return hf_config.decoder_config(
        Fields({**fields.values, **values}, fields.source),
        "opt",
        rope=None,
        position_offset=2,
        embed_size=fields.size("word_embed_proj_dim", default=fields.size("hidden_size")),
        norm="layer",
        norm_eps=1e-5,
        pre_norm=pre_norm,
        final_norm=pre_norm and not fields.flag("_remove_final_layer_norm", default=False),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
    )


def build(decoder: "Decoder") -> None:
    name = "model.decoder"
    decoder.embed(f"{name}.embed_tokens", positions=f"{name}.embed_positions", project=f"{name}.project_in")
    for layer in range(decoder.config.num_layers):
        block = f"{name}.layers.{layer}"
        heads = f"{block}.self_attn"
        decoder.attention(
            layer,
            norm=f"{block}.self_attn_layer_norm",
            qkv=(f"{heads}.q_proj", f"{heads}.k_proj", f"{heads}.v_proj"),
            out=f"{heads}.out_proj",
        )
        decoder.mlp(norm=f"{block}.final_layer_norm", up=(f"{block}.fc1",), down=f"{block}.fc2")
    decoder.head(norm=f"{name}.final_layer_norm", lm_head="lm_head", project=f"{name}.project_out")


ARCHITECTURE = Architecture(name="opt", hf_classes=("OPTForCausalLM",), model_types=("opt",), read_hf=read_hf, build=build)
