"""`ModelConfig` from the metadata of a GGUF file."""

from typing import Any

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.models.fields import Fields
from octavo.models.gguf_file import GGUFFile
from octavo.models.hf_config import divide_heads
from octavo.spec.model import LIMITS, ModelConfig
from octavo.spec.rope import RopeConfig, longrope_attention_factor, yarn_attention_factor

# Names that most GGUF files of Llama's descendants share.
LLAMA_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
}


def decoder_config(file: GGUFFile, architecture: str, **overrides: Any) -> ModelConfig:
    """The keys that nearly all decoders use; `overrides` are the architecture's own.  What a file holds says which biases it has."""
    fields = file.fields.under(file.fields.text("general.architecture") + ".")
    tokenizer = file.fields.under("tokenizer.ggml.")
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length") if "attention.key_length" in fields else divide_heads(str(file.path), hidden, heads)
    if fields.size("attention.value_length", default=head_dim) != head_dim:
        raise UnsupportedModelError(f"{file.path}: values of another size than keys ({head_dim}) aren't known")
    if fields.whole("expert_count", default=0):
        raise UnsupportedModelError(f"{file.path}: mixtures of experts aren't read from GGUF files; load the model's safetensors")
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelLoadError(f"{file.path}: tensor token_embd.weight is missing, or isn't a matrix")
    max_positions = fields.size("context_length")
    ends = {*tokenizer.ids("eos_token_id"), *tokenizer.ids("eot_token_id"), *tokenizer.ids("eom_token_id")}
    values: dict[str, Any] = {
        "source": str(file.path),
        "architecture": architecture,
        "vocab_size": table.shape[0],
        "hidden_size": hidden,
        "embed_size": hidden,
        "num_layers": num_layers(fields),
        "num_heads": heads,
        "num_kv_heads": fields.size("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "intermediate_size": fields.size("feed_forward_length"),
        "max_positions": max_positions,
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", default=1e-5),
        "tie_embeddings": "output.weight" not in file.tensors,
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors,
        "out_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "eos_token_ids": tuple(sorted(ends)),
    }
    if "rope" not in overrides:
        values["rope"] = _rope_config(file, fields, head_dim, max_positions)
    return ModelConfig(**{**values, **overrides})


def num_layers(fields: Fields) -> int:
    """How many layers the file says it has, within bounds."""
    return fields.size("block_count", limit=LIMITS["num_layers"])


def _rope_config(file: GGUFFile, fields: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    kind = fields.text("rope.scaling.type", default="none")
    original = fields.size("rope.scaling.original_context_length", default=max_positions)
    factor = fields.number("rope.scaling.factor", "rope.scale_linear", default=1.0)
    if kind == "none":
        kind = "linear" if "rope.scale_linear" in fields and factor != 1.0 else "default"
    values: dict[str, Any] = {
        "source": str(file.path),
        "rotary_dim": fields.size("rope.dimension_count", default=head_dim),
        "theta": fields.number("rope.freq_base", default=10000.0),
        "scaling": kind,
    }
    short, long = file.floats("rope_factors_short.weight"), file.floats("rope_factors_long.weight")
    if short or long or kind == "longrope":
        stretched = max_positions / original
        attention = fields.number("rope.scaling.attn_factor", default=longrope_attention_factor(stretched, original))
        values |= {
            "scaling": "longrope",
            "short_factors": short,
            "long_factors": long,
            "factor": stretched,
            "attention_factor": attention,
        }
    elif file.floats("rope_freqs.weight"):
        # Llama 3's scaling comes as the divisor of each frequency, whatever the length: longrope with one list.
        divisors = file.floats("rope_freqs.weight")
        original = max_positions
        values |= {"scaling": "longrope", "short_factors": divisors, "long_factors": divisors}
    elif kind == "yarn":
        attention = fields.number("rope.scaling.attn_factor", default=1.0) * yarn_attention_factor(factor)
        values |= {
            "factor": factor,
            "attention_factor": attention,
            "beta_fast": fields.number("rope.scaling.yarn_beta_fast", default=32.0),
            "beta_slow": fields.number("rope.scaling.yarn_beta_slow", default=1.0),
        }
    elif kind == "linear":
        original = max_positions
        values |= {"factor": factor}
    return RopeConfig(original_max_positions=original, **values)
