"""`SafetensorsWeights`: a folder with model.safetensors, or with shards and their index."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.models.hf_config import read_json
from octavo.models.weights import check_shape, content_digest, missing

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = ("F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SHARD_NAME = re.compile(r"[\w.-]+\.safetensors")


class SafetensorsWeights:
    """Opens every shard's header at once (so that a missing or truncated one is found first), and reads tensors when asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._expected: set[str] = set()
        self._shard_of: dict[str, tuple[Path, Any]] = {}
        for path, listed in _shards(folder).items():
            shard = _open(path)
            held = set(shard.keys())
            if listed - held:
                raise ModelLoadError(f"{path}: tensor {min(listed - held)} is missing; {INDEX} says that it is there")
            self._shard_of |= dict.fromkeys(listed or held, (path, shard))

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._shard_of:
            raise missing(self._folder, name)
        path, shard = self._shard_of[name]
        header = shard.get_slice(name)
        check_shape(path, name, tuple(header.get_shape()), shape)
        if header.get_dtype() not in FLOATS:
            raise UnsupportedModelError(
                f"{path}: tensor {name} is stored as {header.get_dtype()}; {', '.join(FLOATS)} are read, quantised weights as GGUF"
            )
        self._expected.add(name)

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.expect(name, shape)
        return self._stored(name).to(dtype, copy=True)

    def stored_dtypes(self) -> set[str]:
        return {shard.get_slice(name).get_dtype() for name, (_, shard) in self._shard_of.items()}

    def digest(self) -> str:
        return content_digest(self._expected, lambda name: [self._stored(name).contiguous().view(torch.uint8).numpy().data])

    def _stored(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._shard_of[name][1].get_tensor(name)
        return tensor


def _shards(folder: Path) -> dict[Path, set[str]]:
    """The files, and the tensors that the index puts into each (none listed where there is no index)."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        shards: dict[Path, set[str]] = {}
        for name, file in index.section("weight_map").values.items():
            if not isinstance(file, str) or not SHARD_NAME.fullmatch(file):
                raise ModelLoadError(
                    f"{folder / INDEX}: weight_map gives {name} the file {file!r}; it must be the name of a safetensors file"
                )
            shards.setdefault(folder / file, set()).add(name)
        absent = sorted(path.name for path in shards if not path.is_file())
        if absent or not shards:
            raise ModelLoadError(f"{folder}: missing {', '.join(absent) or 'every shard'} that {INDEX} lists")
        return shards
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: set()}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: set()}
    if found:
        raise ModelLoadError(f"{folder}: {len(found)} safetensors files without {INDEX}; it must say which tensor lies where")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ModelLoadError(
            f"{folder}: the weights are pickled ({pickles[0]}), and unpickling runs whatever the file says; "
            "convert them to safetensors"
        )
    raise ModelLoadError(f"{folder}: holds no {SINGLE}, no {INDEX} and no GGUF file")


def _open(path: Path) -> Any:
    """Checks that the header's offsets agree with shapes, dtypes and the file's size, without reading a tensor."""
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path} ({path.stat().st_size} bytes) is truncated or damaged: its header and its contents don't agree ({error})"
        ) from error
