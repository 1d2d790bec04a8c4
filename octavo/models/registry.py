"""The architectures that Octavo knows: each is one file in `octavo/models/architectures/`, found by being there."""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.errors import UnsupportedModelError
from octavo.models import architectures
from octavo.models.fields import Fields
from octavo.models.gguf_file import GGUFFile
from octavo.spec.model import ModelConfig

if TYPE_CHECKING:
    from octavo.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one file says about its architecture.

    hf_classes: names in `architectures` of a config.json.  model_types: its `model_type`, asked when there are no names.
    gguf_names: `general.architecture` of a GGUF file.  read_hf, read_gguf: config of either kind of file.
    gguf_tensors: the GGUF name of each checkpoint name, without ".weight" and ".bias"; "{}" stands for the layer.
    gguf_interleaves: q and k rows lie pair by pair in GGUF files (as rotary embedding of neighbours wants them).
    build: orders a `Decoder` to make the program.  Torch isn't imported before that.
    """

    name: str
    hf_classes: tuple[str, ...]
    model_types: tuple[str, ...]
    read_hf: Callable[[Fields], ModelConfig]
    build: Callable[["Decoder"], None]
    gguf_names: tuple[str, ...] = ()
    read_gguf: Callable[[GGUFFile], ModelConfig] | None = None
    gguf_tensors: Mapping[str, str] = field(default_factory=dict)
    gguf_interleaves: bool = False


@functools.cache
def known() -> tuple[Architecture, ...]:
    """Every architecture there is a file for, by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(architectures.__path__))
    return tuple(importlib.import_module(f"{architectures.__name__}.{name}").ARCHITECTURE for name in names)


def of_hf(fields: Fields) -> Architecture:
    """The architecture of a config.json.  Raises UnsupportedModelError with the list of those known."""
    classes = fields.raw("architectures") or []
    model_type = fields.raw("model_type")
    for architecture in known():
        named = classes and isinstance(classes, list) and classes[0] in architecture.hf_classes
        if named or (not classes and model_type in architecture.model_types):
            return architecture
    listed = ", ".join(sorted(name for architecture in known() for name in architecture.hf_classes))
    asked = f"architectures={classes}" if classes else f"model_type={model_type!r}"
    raise UnsupportedModelError(f"{fields.source}: {asked} isn't a decoder that Octavo knows; known are {listed}")


def read_gguf(file: GGUFFile) -> tuple[Architecture, ModelConfig]:
    """The architecture of a GGUF file, and its config.  Raises UnsupportedModelError with the list of those known."""
    name = file.fields.text("general.architecture")
    readers = {known_name: entry for entry in known() for known_name in entry.gguf_names}
    architecture = readers.get(name)
    if architecture is None or architecture.read_gguf is None:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture={name!r} isn't a decoder that Octavo knows; known are {', '.join(sorted(readers))}"
        )
    return architecture, architecture.read_gguf(file)
