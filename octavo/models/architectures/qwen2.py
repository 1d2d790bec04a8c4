"""Qwen2 (Yang et al. 2024): Llama with biases on q, k and v, and windows on some layers."""

from octavo.models import gguf_config, hf_config
from octavo.models.architectures import llama
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig


def read_hf(fields: Fields) -> ModelConfig:
    return hf_config.decoder_config(fields, "qwen2", qkv_bias=True, windows=hf_config.switched_windows(fields))


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    return gguf_config.decoder_config(file, "qwen2")


ARCHITECTURE = Architecture(
    name="qwen2",
    hf_classes=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    read_hf=read_hf,
    build=llama.build,
    gguf_names=("qwen2",),
    read_gguf=read_gguf,
    gguf_tensors=gguf_config.LLAMA_TENSORS,
)
