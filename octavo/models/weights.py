"""`WeightSource`: a checkpoint's tensors, one at a time."""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from octavo.core.errors import ModelLoadError
from octavo.spec.host import usable_cpus


class WeightSource(Protocol):
    """Tensors by the names that the checkpoint's own library gives them.  Nothing is read before `get`."""

    def __contains__(self, name: str) -> bool: ...

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ModelLoadError, without reading, when a tensor is missing or of another shape.  It belongs to the model now."""

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor, converted; read anew at each call.  Raises as `expect` does, before memory is taken."""

    def stored_dtypes(self) -> set[str]:
        """How the tensors are stored: "F32", "F16", "BF16", or a quantisation's name."""

    def digest(self) -> str:
        """SHA-256, in hex, over the name and the stored bytes of every tensor of the model.  Reads them all."""


def content_digest(names: Iterable[str], stored: Callable[[str], Iterable[bytes | memoryview]]) -> str:
    """Digest of tensors, in any order: the same ones give the same digest, in any file and any number of shards.

    stored: a tensor's bytes, in pieces; asked for from several threads.
    """

    def content(name: str) -> bytes:
        digest = hashlib.sha256()
        for piece in stored(name):
            digest.update(piece)
        return digest.digest()

    ordered, whole = sorted(names), hashlib.sha256()
    with ThreadPoolExecutor(usable_cpus()) as threads:  # hashing lets go of the interpreter's lock
        for name, digest in zip(ordered, threads.map(content, ordered), strict=True):
            whole.update(f"{len(name)}:{name}".encode() + digest)
    return whole.hexdigest()


def check_shape(path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises ModelLoadError where a tensor's shape isn't the one that the config implies."""
    if found != expected:
        raise ModelLoadError(f"{path}: tensor {name} has the shape {list(found)}; the config makes it {list(expected)}")


def missing(where: Path, name: str) -> ModelLoadError:
    """The error for a tensor that the config asks for and the files lack."""
    return ModelLoadError(f"{where}: tensor {name} is missing")
