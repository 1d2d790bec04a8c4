"""`Checkpoint`: what a model's files say before any weight is read.  No torch: planning asks here too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.models import registry
from octavo.models.gguf_file import GGUFFile, open_gguf
from octavo.models.hf_config import read_json, with_generation_config
from octavo.models.locate import locate
from octavo.spec.model import ModelConfig

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """path: the folder, or the GGUF file.  gguf: its header; None for safetensors.  revision: the hub's commit, or empty."""

    path: Path
    architecture: registry.Architecture
    config: ModelConfig
    gguf: GGUFFile | None
    revision: str


def read_checkpoint(model: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Find the files of `model` (as in `load_model`) and read what they say.

    Raises ModelLoadError naming file and field, or UnsupportedModelError.
    """
    found = locate(model, revision=revision)
    if found.is_gguf:
        file = open_gguf(found.path)
        architecture, config = registry.read_gguf(file)
        return Checkpoint(file.path, architecture, config, file, found.revision)
    fields = read_json(found.path / CONFIG)
    architecture = registry.of_hf(fields)
    config = with_generation_config(architecture.read_hf(fields), found.path)
    return Checkpoint(found.path, architecture, config, None, found.revision)


def load_config(model: str | Path, *, revision: str | None = None) -> ModelConfig:
    """The config alone: enough to plan memory.  Raises as `read_checkpoint` does."""
    return read_checkpoint(model, revision=revision).config


def tokenizer_source(model: str | Path, *, revision: str | None = None) -> Path | Mapping[str, Any]:
    """What `octavo.text.loading.load_tokenizer` takes: a folder, or a GGUF file's metadata."""
    found = locate(model, revision=revision)
    return open_gguf(found.path).metadata if found.is_gguf else found.path
