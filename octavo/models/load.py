"""`load_model`: from a name or path to a program with its weights, ready to be bound."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch

from octavo.core.errors import CapacityError, ConfigError
from octavo.kernels.native import available_paths
from octavo.kernels.program import Program
from octavo.models.checkpoint import Checkpoint, read_checkpoint
from octavo.models.decoder import Decoder
from octavo.models.dummy_weights import DummyWeights
from octavo.models.gguf_weights import GGUFWeights
from octavo.models.rope import inverse_frequencies, table_bytes
from octavo.models.safetensors_weights import SafetensorsWeights
from octavo.models.weights import WeightSource
from octavo.spec.host import read_host_memory
from octavo.spec.memory import AttentionLayerSpec
from octavo.spec.model import LoadFormat, ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model whose files were found sound as far as that is seen without reading its matrices.

    program: what an executor binds; that reads the matrices.  dtype: of its products, "float32" or "bfloat16".
    max_model_len: positions that it was made for.
    tokenizer_source: what `octavo.text.loading.load_tokenizer` takes: a folder, or a GGUF file's metadata.
    notices: what the user should be told once.
    """

    config: ModelConfig
    program: Program
    dtype: str
    max_model_len: int
    tokenizer_source: Path | Mapping[str, Any]
    notices: tuple[str, ...]
    weights: WeightSource = field(repr=False)

    @property
    def memory_layers(self) -> tuple[AttentionLayerSpec, ...]:
        return self.config.attention_layers()

    def digest(self) -> str:
        """SHA-256 in hex over all that turns tokens into K and V, except dtype and kernels: weights, config, frequencies.

        Reads every weight once more.
        """
        rope = self.config.rope and replace(self.config.rope, source="")
        config = replace(self.config, source="", rope=rope)
        whole = hashlib.sha256(f"{config}\n{self.weights.digest()}\n".encode())
        if self.config.rope is not None:
            whole.update(inverse_frequencies(self.config.rope, self.max_model_len).numpy().tobytes())
        return whole.hexdigest()


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    max_model_len: int | None = None,
    load_format: str = "auto",
    revision: str | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Read a model's config, and make its program, which reads the weights.

    model: a folder with config.json and safetensors, a GGUF file (any part of a split one, or its folder), a hub id, or a name of
    `octavo.models.fetch.MODELS`.  dtype: "auto" is bfloat16 where this machine has kernels for it, else float32.
    max_model_len: the longest sequence; None takes the config's.  load_format: "dummy" takes the config alone and random weights
    drawn from `seed`.  revision: of a hub id.

    Raises ModelLoadError or UnsupportedModelError for the files, naming file and field; ConfigError for a setting;
    CapacityError when the weights can't fit into this machine's memory.  All but damaged contents is found before memory is taken;
    those are found, as ModelLoadError too, when an executor binds the program.
    """
    if load_format not in get_args(LoadFormat):
        raise ConfigError(f"load_format={load_format!r} is not one of {', '.join(get_args(LoadFormat))}")
    compute = choose_dtype(dtype)
    checkpoint = read_checkpoint(model, revision=revision)
    config = checkpoint.config
    length = _max_model_len(config, max_model_len)
    _check_room(config, compute, length)
    weights = _weights(checkpoint, load_format, seed)
    decoder = Decoder(config, weights, dtype=DTYPES[compute], max_model_len=length)
    checkpoint.architecture.build(decoder)
    notices = decoder.notices
    if "F16" in weights.stored_dtypes():
        notices.append(f"{config.source}: the checkpoint's float16 weights are converted to {compute}")
    return LoadedModel(
        config=config,
        program=decoder.program(),
        dtype=compute,
        max_model_len=length,
        tokenizer_source=checkpoint.path if checkpoint.gguf is None else checkpoint.gguf.metadata,
        notices=tuple(notices),
        weights=weights,
    )


def choose_dtype(dtype: str) -> str:
    """The name of the compute dtype.  Raises ConfigError for one that isn't computed in."""
    if dtype == "auto":
        return "bfloat16" if "avx512_bf16" in available_paths() else "float32"
    if dtype not in DTYPES:
        also = "; float16 is for storage only, and a float16 checkpoint is converted" if dtype == "float16" else ""
        raise ConfigError(f"dtype={dtype!r} is not one of auto, {', '.join(DTYPES)}{also}")
    return dtype


def _weights(checkpoint: Checkpoint, load_format: str, seed: int) -> WeightSource:
    config, file = checkpoint.config, checkpoint.gguf
    if load_format == "dummy":
        absent = {"lm_head.bias"} | ({"lm_head.weight"} if config.tie_embeddings else set())
        return DummyWeights(seed, absent=frozenset(absent))
    if file is None:
        if load_format == "gguf":
            raise ConfigError(f"load_format='gguf', but {config.source} belongs to safetensors; give the path of the GGUF file")
        return SafetensorsWeights(checkpoint.path)
    if load_format == "safetensors":
        raise ConfigError(f"load_format='safetensors', but {checkpoint.path} is a GGUF file; set load_format='auto'")
    architecture = checkpoint.architecture
    heads = (config.num_heads, config.num_kv_heads) if architecture.gguf_interleaves else (0, 0)
    return GGUFWeights(file, architecture.gguf_tensors, heads)


def _max_model_len(config: ModelConfig, asked: int | None) -> int:
    length = config.max_positions if asked is None else asked
    if not 1 <= length <= config.longest:
        raise ConfigError(f"max_model_len={length} must be at least 1 and at most {config.longest}, the model's own ({config.source})")
    return length


def _check_room(config: ModelConfig, dtype: str, length: int) -> None:
    """What stays (products, tables, cosines and sines), and the largest matrix once more while it is packed."""
    size = DTYPES[dtype].itemsize
    tables = 0 if config.rope is None else table_bytes(config.rope, length)
    needed, available = (config.num_parameters + config.largest_matrix) * size + tables, read_host_memory().available
    if needed > available:
        also = "; dtype='bfloat16' takes half of the weights" if dtype == "float32" else ""
        also += "; set a smaller max_model_len for smaller tables" if tables else ""
        raise CapacityError(
            f"{config.source}: loading {config.num_parameters} weights takes {needed} bytes in {dtype}, of them {tables} for "
            f"the rotary tables of max_model_len={length}; {available} bytes of memory are free{also}"
        )
