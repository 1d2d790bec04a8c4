"""Mistral (Jiang et al. 2023): Llama with a sliding window over every layer.  Its GGUF files call themselves llama."""

from octavo.models import hf_config
from octavo.models.architectures import llama
from octavo.models.fields import Fields
from octavo.models.registry import Architecture
from octavo.spec.model import ModelConfig


def read_hf(fields: Fields) -> ModelConfig:
    return hf_config.decoder_config(fields, "mistral", windows=hf_config.sliding_windows(fields))


ARCHITECTURE = Architecture(
    name="mistral", hf_classes=("MistralForCausalLM",), model_types=("mistral",), read_hf=read_hf, build=llama.build
)
