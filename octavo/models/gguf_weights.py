"""`GGUFWeights`: tensors of a GGUF file under their checkpoint names, dequantised a slab of rows at a time."""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from octavo.core.errors import ModelLoadError
from octavo.models.gguf_file import GGUFFile, TensorInfo
from octavo.models.weights import check_shape, content_digest, missing

SLAB_ELEMENTS = 1 << 18  # a slab's float32 values fit in a core's cache
LAYER_NUMBER = re.compile(r"\.(\d+)\.")
INTERLEAVED = re.compile(r"blk\.\d+\.attn_(?P<which>[qk])\.(weight|bias)")


class GGUFWeights:
    """names: the GGUF name of each checkpoint name, as `Architecture.gguf_tensors` has them.

    interleaved_heads: heads of q and of k whose rows lie pair by pair in the file (0, 0: as in the checkpoint).
    """

    def __init__(self, file: GGUFFile, names: Mapping[str, str], interleaved_heads: tuple[int, int] = (0, 0)) -> None:
        self._file = file
        self._names = names
        self._interleaved_heads = dict(zip("qk", interleaved_heads, strict=True))
        self._expected: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._translate(name) in self._file.tensors

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._translate(name)
        info = self._file.tensors.get(stored)
        if info is None:
            raise missing(self._file.path, stored)
        check_shape(info.path, stored, info.shape, shape)
        self._expected.add(stored)

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.expect(name, shape)
        stored = self._translate(name)
        tensor = self._read(self._file.tensors[stored], dtype)
        match = INTERLEAVED.fullmatch(stored)
        heads = self._interleaved_heads[match["which"]] if match else 0
        return _halves_together(tensor, heads) if heads else tensor

    def stored_dtypes(self) -> set[str]:
        return {info.type.name for info in self._file.tensors.values()}

    def digest(self) -> str:
        return content_digest(self._expected, lambda name: _slabs(self._file.tensors[name]))

    def _translate(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        layer = LAYER_NUMBER.search(stem)
        pattern = LAYER_NUMBER.sub(".{}.", stem, count=1)
        known = self._names.get(pattern, stem)
        return f"{known.format(layer[1]) if layer else known}.{kind}"

    @staticmethod
    def _read(info: TensorInfo, dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(info.shape, dtype=dtype)
        low, flat = 0, out.view(-1)
        for stored in _slabs(info):
            values = _floats(stored, info.type.name).view(-1)
            flat[low : low + values.numel()].copy_(values)
            low += values.numel()
        return out


def _slabs(info: TensorInfo) -> Iterator[bytes]:
    """A tensor's stored bytes, some whole rows at a time.  Raises ModelLoadError where the file ends early."""
    rows = math.prod(info.shape[:-1])
    row_bytes, slab = info.nbytes // max(1, rows), max(1, SLAB_ELEMENTS // info.shape[-1])
    with info.path.open("rb") as file:
        file.seek(info.offset)
        for low in range(0, rows, slab):
            size = min(slab, rows - low) * row_bytes
            stored = file.read(size)
            if len(stored) != size:
                raise ModelLoadError(f"{info.path}: ends inside tensor {info.name}; it was cut while it was read")
            yield stored


def _floats(stored: bytes, kind: str) -> torch.Tensor:
    """Values of whole rows, one after the other: handed over as a single row, because the package loops over rows in Python."""
    values = dequantize(np.frombuffer(stored, np.uint8).reshape(1, -1), GGMLQuantizationType[kind])
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _halves_together(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """From pairs (2i, 2i + 1) of a head that rotate together to (i, i + half), the order of `Rope`."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
