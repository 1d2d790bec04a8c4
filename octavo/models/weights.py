"""`WeightSource`: a checkpoint's tensors, one at a time."""

import hashlib
from pathlib import Path
from typing import Protocol

import torch

from octavo.core.errors import ModelLoadError


class WeightSource(Protocol):
    """Tensors by the names that the checkpoint's own library gives them.  Nothing is read before `get`."""

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor, converted.  Raises ModelLoadError, before memory is taken, when it is missing or of another shape."""

    def stored_dtypes(self) -> set[str]:
        """How the tensors are stored: "F32", "F16", "BF16", or a quantisation's name."""

    def digest(self) -> str:
        """SHA-256, in hex, over the name and the stored bytes of every tensor that was read so far."""


class ContentDigest:
    """Digest of what was read, whatever the order: the same tensors give the same digest, in any file and any number of shards."""

    def __init__(self) -> None:
        self._tensors: dict[str, bytes] = {}

    def add(self, name: str, content: bytes) -> None:
        """content: the tensor's own digest."""
        self._tensors[name] = content

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for name in sorted(self._tensors):
            whole.update(f"{len(name)}:{name}".encode() + self._tensors[name])
        return whole.hexdigest()


def check_shape(path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises ModelLoadError where a tensor's shape isn't the one that the config implies."""
    if found != expected:
        raise ModelLoadError(f"{path}: tensor {name} has the shape {list(found)}; the config makes it {list(expected)}")


def missing(where: Path, name: str) -> ModelLoadError:
    """The error for a tensor that the config asks for and the files lack."""
    return ModelLoadError(f"{where}: tensor {name} is missing")
