"""Tiny random models of every architecture, made with transformers and kept for the session, and their logits.

`tiny(name)` gives a `TinyModel`: its folder (what `save_pretrained` wrote) and the logits of transformers for a list of ids.
"""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 211
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
GPT2_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT_SHAPE: dict[str, Any] = {
    **{key: value for key, value in SHAPE.items() if key not in ("intermediate_size", "num_key_value_heads")},
    "ffn_dim": 88,
    "pad_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0 + i / 8 for i in range(6)], "long_factor": [1.5 + i for i in range(6)]}


def _llama(**changes: Any) -> Callable[[], transformers.PretrainedConfig]:
    return lambda: transformers.LlamaConfig(**SHAPE | changes)


CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": _llama(),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True, head_dim=24),
    "llama-linear": _llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
    "llama-dynamic": _llama(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}),
    "llama-llama3": _llama(rope_parameters={**LLAMA3, "rope_theta": 10000.0}),
    "llama-yarn": _llama(
        rope_parameters={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    ),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=9),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2-windows": lambda: transformers.Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=32),
    "mixtral": lambda: transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True
    ),
    "qwen3-moe-dense-too": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=False, mlp_only_layers=[1]
    ),
    "gemma": lambda: transformers.GemmaConfig(**SHAPE | {"num_key_value_heads": 1}, head_dim=32),
    "phi3": lambda: transformers.Phi3Config(**SHAPE, sliding_window=40),
    "phi3-longrope": lambda: transformers.Phi3Config(
        **SHAPE,
        original_max_position_embeddings=64,
        rope_parameters={**LONGROPE, "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    ),
    "gpt2": lambda: transformers.GPT2Config(**GPT2_SHAPE),
    "gpt2-scales": lambda: transformers.GPT2Config(**GPT2_SHAPE, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False),
    "opt": lambda: transformers.OPTConfig(**OPT_SHAPE),
    "opt-post-norm": lambda: transformers.OPTConfig(**OPT_SHAPE, do_layer_norm_before=False, word_embed_proj_dim=32),
    "opt-no-biases": lambda: transformers.OPTConfig(**OPT_SHAPE, enable_bias=False),
}


@dataclass(frozen=True, eq=False)
class TinyModel:
    """folder: a checkpoint that `load_model` takes.  model: transformers' own, float32, in evaluation mode."""

    name: str
    folder: Path
    model: Any

    def logits(self, ids: list[int]) -> torch.Tensor:
        """float32 [len(ids), vocab]: one full forward, without a cache."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()


@functools.cache
def tiny(name: str) -> TinyModel:
    """The model of that name in `CONFIGS`, made once a session."""
    folder = Path(_session_folder().name) / name
    model = randomised(CONFIGS[name](), seed=len(name))
    model.save_pretrained(folder)
    return TinyModel(name, folder, model)


def randomised(config: transformers.PretrainedConfig, *, seed: int) -> Any:
    """A model with every weight and bias random, large enough that attention and logits differ clearly from token to token."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1.0 if "embed" in name or "wte" in name else 1.2 / weight.shape[-1] ** 0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


@functools.cache
def _session_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="octavo-tiny-")
