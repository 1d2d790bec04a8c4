"""Qwen3 (Yang et al. 2025): Llama with an RMSNorm on each head of q and k."""

from octavo.models import gguf_config, hf_config
from octavo.models.architectures import llama
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig


def read_hf(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", default=False)
    return hf_config.decoder_config(
        fields, "qwen3", qkv_bias=bias, out_bias=bias, qk_norm=True, windows=hf_config.switched_windows(fields)
    )


def read_gguf(file: gguf_config.GGUFFile) -> ModelConfig:
    return gguf_config.decoder_config(file, "qwen3", qk_norm=True)


ARCHITECTURE = Architecture(
    name="qwen3",
    hf_classes=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    read_hf=read_hf,
    build=llama.build,
    gguf_names=("qwen3",),
    read_gguf=read_gguf,
    gguf_tensors=gguf_config.LLAMA_TENSORS,
)
