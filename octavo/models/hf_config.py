"""`ModelConfig` from a config.json as Hugging Face's libraries write it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.models.fields import Fields
from octavo.spec.model import LIMITS, Activation, ModelConfig
from octavo.spec.rope import RopeConfig, longrope_attention_factor, yarn_attention_factor

MAX_CONFIG_BYTES = 16 << 20

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read_json(path: Path) -> Fields:
    """A JSON file's mapping.  Raises ModelLoadError when it is missing, too large, or not JSON."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelLoadError(f"{path} has {path.stat().st_size} bytes; a config of more than {MAX_CONFIG_BYTES} isn't read")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} isn't JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} holds a {type(values).__name__}; it must be a mapping")
    return Fields(values, str(path))


def with_generation_config(config: ModelConfig, folder: Path) -> ModelConfig:
    """The config with the end-of-sequence ids of generation_config.json added (chat models list more of them there)."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return config
    ids = {*config.eos_token_ids, *read_json(path).ids("eos_token_id")}
    return dataclasses.replace(config, eos_token_ids=tuple(sorted(ids)))


def decoder_config(fields: Fields, architecture: str, **overrides: Any) -> ModelConfig:
    """The fields that nearly all decoders name alike; `overrides` are the architecture's own."""
    if "quantization_config" in fields:
        method = fields.section("quantization_config").raw("quant_method")
        raise UnsupportedModelError(
            f"{fields.source}: the weights are quantised ({method}); Octavo reads float32, float16 and bfloat16 safetensors, or GGUF"
        )
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    max_positions = fields.size("max_position_embeddings")
    head_dim = fields.size("head_dim") if "head_dim" in fields else divide_heads(fields.source, hidden, heads)
    values: dict[str, Any] = {
        "source": fields.source,
        "architecture": architecture,
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": hidden,
        "embed_size": hidden,
        "num_layers": num_layers(fields),
        "num_heads": heads,
        "num_kv_heads": fields.size("num_key_value_heads", default=heads),
        "head_dim": head_dim,
        "intermediate_size": fields.size("intermediate_size"),
        "max_positions": max_positions,
        "norm_eps": fields.number("rms_norm_eps", default=1e-6),
        "activation": activation(fields, "hidden_act", default="silu"),
        "tie_embeddings": fields.flag("tie_word_embeddings", default=False),
        "eos_token_ids": fields.ids("eos_token_id"),
    }
    if "rope" not in overrides:
        values["rope"] = rope_config(fields, head_dim, max_positions)
    return ModelConfig(**{**values, **overrides})


def num_layers(fields: Fields) -> int:
    """Checked at once: whatever is made per layer is made after this."""
    return fields.size("num_hidden_layers", limit=LIMITS["num_layers"])


def divide_heads(source: str, hidden: int, heads: int) -> int:
    """The size of a head where a config doesn't say it."""
    if hidden % heads:
        raise ModelLoadError(f"{source}: hidden_size={hidden} can't be shared out over num_attention_heads={heads}")
    return hidden // heads


def activation(fields: Fields, *names: str, default: str | None = None) -> Activation:
    """The activation under the first of these names that is there.  Raises UnsupportedModelError with the list of those known."""
    name = fields.text(*names, default=default)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{fields.source}: {names[0]}={name!r} isn't known; these are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sliding_windows(fields: Fields) -> tuple[int | None, ...]:
    """One window for all layers, where `sliding_window` says it."""
    return (fields.size("sliding_window"),) * num_layers(fields) if "sliding_window" in fields else ()


def switched_windows(fields: Fields) -> tuple[int | None, ...]:
    """Windows of models that switch them on with `use_sliding_window`, for the layers that `layer_types` names or that come last."""
    if not fields.flag("use_sliding_window", default=False) or "sliding_window" not in fields:
        return ()
    window = fields.size("sliding_window")
    types = fields.raw("layer_types")
    if types is None:
        first = fields.whole("max_window_layers", default=num_layers(fields))
        return tuple(window if layer >= first else None for layer in range(num_layers(fields)))
    if not isinstance(types, list) or not all(kind in ("full_attention", "sliding_attention") for kind in types):
        raise fields.error("layer_types", types, "a list of full_attention and sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def rope_config(fields: Fields, head_dim: int, max_positions: int, *, aliases: dict[str, str] | None = None) -> RopeConfig:
    """Rotary embedding from `rope_parameters` (the newer form) or `rope_scaling` and its neighbours.

    aliases: other names of a scaling, where an architecture's files use them.
    """
    section = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    if any(isinstance(value, dict) for value in section.values.values()):
        raise UnsupportedModelError(f"{section.source}: frequencies that differ from layer to layer aren't known")
    kind = section.text("rope_type", "type", default="default")
    kind = (aliases or {}).get(kind, kind)
    # Phi-3 keeps the trained length beside the section; there it has priority.
    original = fields if "original_max_position_embeddings" in fields else section
    scaled = kind in ("llama3", "yarn", "longrope")
    original_positions = original.size("original_max_position_embeddings", default=max_positions) if scaled else max_positions
    ratio = max_positions / original_positions if kind == "longrope" else None
    factor = 1.0 if kind == "default" else section.number("factor", default=ratio)
    partial = section.number("partial_rotary_factor", default=fields.number("partial_rotary_factor", default=1.0))
    return RopeConfig(
        source=section.source,
        rotary_dim=int(head_dim * partial),
        original_max_positions=original_positions,
        theta=section.number("rope_theta", default=fields.number("rope_theta", default=10000.0)),
        scaling=kind,  # type: ignore[arg-type]  # RopeConfig refuses the names it doesn't know
        factor=factor,
        attention_factor=_attention_factor(section, kind, factor, original_positions),
        low_freq_factor=section.number("low_freq_factor", default=1.0),
        high_freq_factor=section.number("high_freq_factor", default=4.0),
        beta_fast=section.number("beta_fast", default=32.0),
        beta_slow=section.number("beta_slow", default=1.0),
        truncate=section.flag("truncate", default=True),
        short_factors=section.numbers("short_factor") if kind == "longrope" else (),
        long_factors=section.numbers("long_factor") if kind == "longrope" else (),
    )


def _attention_factor(section: Fields, kind: str, factor: float, original_positions: int) -> float:
    if kind not in ("yarn", "longrope"):
        return 1.0
    if "attention_factor" in section:
        return section.number("attention_factor")
    if kind == "longrope":
        return longrope_attention_factor(factor, original_positions)
    if "mscale" in section and "mscale_all_dim" in section:
        over = yarn_attention_factor(factor, section.number("mscale"))
        return over / yarn_attention_factor(factor, section.number("mscale_all_dim"))
    return yarn_attention_factor(factor)
