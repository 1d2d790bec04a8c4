"""`load_tokenizer`: the one way to a tokenizer, whatever the model came in."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from octavo.text.folder import tokenizer_from_folder
from octavo.text.gguf_vocabulary import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer


def load_tokenizer(source: "str | PathLike[str] | Mapping[str, Any]") -> Tokenizer:
    """A tokenizer from a model's folder (a path), or from a GGUF file's metadata (key -> value).

    Raises ModelLoadError, naming the file or field, or its kin UnsupportedModelError.
    """
    if isinstance(source, Mapping):
        return tokenizer_from_gguf(source)
    return tokenizer_from_folder(Path(source))
