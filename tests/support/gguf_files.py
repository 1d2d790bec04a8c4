"""GGUF files of tiny models, written with the `gguf` package the way that llama.cpp's converter lays tensors out."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_models import TinyModel

from octavo.models import registry

TYPES = gguf.GGMLQuantizationType


def write_gguf(
    model: TinyModel,
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = TYPES.F32,
    without: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    numbers: dict[str, Any] | None = None,
    parts_of: int = 0,
) -> Path:
    """Write `model` to `path`, matrices as `kind`.  without: GGUF names left out.  extra: more tensors.  numbers: more metadata, under
    the architecture's prefix.  parts_of: tensors of each part of a split file (0: one file).  Returns the path of the first part."""
    config = model.model.config
    name = config.model_type if config.model_type != "mistral" else "llama"
    architecture = next(entry for entry in registry.known() if name in entry.gguf_names)
    writer = gguf.GGUFWriter(path, name, split_max_tensors=parts_of)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10000.0)
    else:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for key, value in (numbers or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{name}.{key}", value)
    tensors = {_gguf_name(architecture, key): _as_stored(architecture, config, key, value) for key, value in _state(model).items()}
    for key, value in {**tensors, **(extra or {})}.items():
        if key in without:
            continue
        if value.ndim == 1 or kind is TYPES.F32:
            writer.add_tensor(key, value)
        else:
            writer.add_tensor(key, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*.gguf"))


def _state(model: TinyModel) -> dict[str, np.ndarray]:
    left_out = "lm_head" if model.model.config.tie_word_embeddings else "nothing"
    state = model.model.state_dict()
    return {key: value.detach().numpy().copy() for key, value in state.items() if not key.startswith(left_out)}


def _gguf_name(architecture: registry.Architecture, key: str) -> str:
    stem, _, kind = key.rpartition(".")
    parts = stem.split(".")
    layer = next((part for part in parts if part.isdigit()), "")
    pattern = ".".join("{}" if part.isdigit() else part for part in parts)
    return f"{architecture.gguf_tensors[pattern].format(layer)}.{kind}"


def _as_stored(architecture: registry.Architecture, config: Any, key: str, value: np.ndarray) -> np.ndarray:
    if architecture.name == "gemma" and key.endswith("norm.weight"):
        return value + 1
    if architecture.name == "gpt2" and value.ndim == 2 and ".h." in key:
        return np.ascontiguousarray(value.T)
    for which, heads in (("q_proj", config.num_attention_heads), ("k_proj", getattr(config, "num_key_value_heads", 0))):
        if architecture.name == "llama" and which in key:
            halves = value.reshape(heads, 2, -1, *value.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
    return value
