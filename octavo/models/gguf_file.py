"""`GGUFFile`: the header of a GGUF file, or of a split one: metadata, and where each tensor lies.

Follows the GGUF specification, versions 2 and 3 (little-endian).  Every count, length and offset is checked against the file's size
before it is used, so a damaged or hostile file ends in a ModelLoadError that names it.
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.models.fields import Fields

MAX_DIMENSIONS = 4
SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")

# Element types of metadata: struct code, by the number that the file uses.  8 is a text, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorType:
    """How a tensor is stored: `block` elements of a row lie together in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place: `shape` with rows first (the file's order reversed), bytes `offset` to `offset + nbytes` of `path`."""

    name: str
    path: Path
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """path: the first part.  metadata: its keys and values, arrays as lists.  tensors: of all parts."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def fields(self) -> Fields:
        return Fields(self.metadata, str(self.path))

    def floats(self, name: str) -> tuple[float, ...]:
        """The values of a small float32 tensor that belongs to the config (frequency factors); empty when absent."""
        info = self.tensors.get(name)
        if info is None:
            return ()
        if info.type.name != "F32" or len(info.shape) != 1:
            raise ModelLoadError(f"{info.path}: tensor {name} is {info.type.name} {info.shape}; it must be a row of F32")
        return tuple(np.fromfile(info.path, dtype="<f4", count=info.shape[0], offset=info.offset).tolist())


def open_gguf(path: Path) -> GGUFFile:
    """Read the header of a file, of all parts of a split one (given any part), or of the only model in a folder.

    Raises ModelLoadError naming the file, and the tensor or key.
    """
    if path.is_dir():
        path = _only_model(path)
    parts = split_parts(path)
    files = [_read_header(part) for part in parts]
    tensors: dict[str, TensorInfo] = {}
    for index, file in enumerate(files):
        number = file.fields.whole("split.no", default=0)
        count = file.fields.whole("split.count", default=1)
        if len(parts) > 1 and (number, count) != (index, len(parts)):
            raise ModelLoadError(
                f"{file.path}: says that it is part {number + 1} of {count}; its name says {index + 1} of {len(parts)}"
            )
        if len(parts) == 1 and count > 1:
            raise ModelLoadError(
                f"{file.path}: is part {number + 1} of {count}, but isn't named NAME-{number + 1:05}-of-{count:05}.gguf; "
                "the other parts can't be found"
            )
        twice = tensors.keys() & file.tensors.keys()
        if twice:
            raise ModelLoadError(f"{file.path}: tensor {min(twice)} is in another part too")
        tensors.update(file.tensors)
    expected = files[0].fields.whole("split.tensors.count", default=len(tensors))
    if expected != len(tensors):
        raise ModelLoadError(f"{path}: the parts hold {len(tensors)} tensors; split.tensors.count says {expected}")
    return GGUFFile(files[0].path, files[0].metadata, tensors)


def split_parts(path: Path) -> list[Path]:
    """All parts of the file that `path` is one part of, in order; [path] when its name isn't that of a part."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing or path not in parts:
        raise ModelLoadError(f"{path.parent}: missing {', '.join(missing) or path.name} of a GGUF model in {count} parts")
    return parts


def _only_model(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    stems = {match["stem"] if (match := SPLIT_NAME.fullmatch(file.name)) else file.name for file in files}
    if len(stems) != 1:
        found = ", ".join(sorted(stems)) or "none"
        raise ModelLoadError(f"{folder}: holds {len(stems)} GGUF models ({found}); give the path of the one to load")
    return files[0]


def _read_header(path: Path) -> GGUFFile:
    try:
        with path.open("rb") as file:
            return _Header(file, path).read()
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error.strerror or error}") from error


class _Header:
    """Reads forward through one file; `where` names what is being read, for messages."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size
        self._left = self._size
        self._where = "the header"

    def read(self) -> GGUFFile:
        if self._take(4) != b"GGUF":
            raise self._error("isn't a GGUF file: it doesn't begin with the letters GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise self._error(f"has GGUF version {version}; versions 2 and 3, little-endian, are read")
        num_tensors, num_keys = self._count(24), self._count(12)
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            self._where = f"the name of metadata key {index}"
            key = self._text()
            self._where = f"metadata key {key}"
            if key in metadata:
                raise self._error("is there twice")
            metadata[key] = self._value(self._number("I"))
        entries = [self._tensor_entry(index) for index in range(num_tensors)]
        alignment = Fields(metadata, str(self._path)).size("general.alignment", default=32)
        if alignment % 8:
            raise ModelLoadError(f"{self._path}: general.alignment={alignment} must be a multiple of 8")
        begin = -(-(self._size - self._left) // alignment) * alignment
        return GGUFFile(self._path, metadata, self._placed(entries, begin, alignment))

    def _tensor_entry(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        self._where = f"the name of tensor {index}"
        name = self._text()
        self._where = f"tensor {name}"
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._error(f"has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _placed(self, entries: list[tuple[str, tuple[int, ...], int, int]], begin: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_id, offset in entries:
            self._where = f"tensor {name}"
            if type_id not in TENSOR_TYPES:
                read = ", ".join(kind.name for kind in TENSOR_TYPES.values())
                raise UnsupportedModelError(f"{self._path}: tensor {name} has the type number {type_id}; these are read: {read}")
            kind = TENSOR_TYPES[type_id]
            if shape[-1] % kind.block:
                raise self._error(f"has rows of {shape[-1]} elements; {kind.name} stores blocks of {kind.block}")
            nbytes = math.prod(shape) // kind.block * kind.nbytes
            if offset % alignment or begin + offset + nbytes > self._size:
                raise self._error(
                    f"lies at bytes {begin + offset} to {begin + offset + nbytes} (aligned to {alignment}); "
                    f"the file has {self._size} bytes"
                )
            if name in tensors:
                raise self._error("is there twice")
            tensors[name] = TensorInfo(name, self._path, shape, kind, begin + offset, nbytes)
        return tensors

    def _value(self, type_id: int) -> Any:
        if type_id == TEXT:
            return self._text()
        if type_id in SCALARS:
            return self._number(SCALARS[type_id])
        if type_id != ARRAY:
            raise self._error(f"has the type number {type_id}, which GGUF doesn't know")
        element = self._number("I")
        if element == TEXT:
            return self._texts(self._count(8))
        if element not in SCALARS:
            raise self._error(f"is an array of elements of type number {element}; numbers and texts are read")
        code = SCALARS[element]
        count = self._count(struct.calcsize(code))
        return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(code))))

    def _count(self, least_bytes: int) -> int:
        """A number of things that take at least so many bytes each: never more than what is left of the file can hold."""
        count = self._number("Q")
        if count * least_bytes > self._left:
            raise self._error(f"says that {count} entries follow; only {self._left} bytes do")
        return count

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """A vocabulary has a hundred thousand of them: this is where a header's time goes."""
        texts, read, length_of = [], self._file.read, struct.Struct("<Q").unpack
        try:
            for _ in range(count):
                length = length_of(read(8))[0] if self._left >= 8 else self._number("Q")
                self._left -= 8
                texts.append((read(length) if length <= self._left else self._take(length)).decode())
                self._left -= length
        except UnicodeDecodeError as error:
            raise self._error(f"isn't UTF-8: {error}") from error
        return texts

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]

    def _take(self, length: int) -> bytes:
        if length > self._left:
            raise self._error(f"needs {length} bytes; the file ends after {self._left} more")
        self._left -= length
        return self._file.read(length)

    def _error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: {self._where} {message}")
