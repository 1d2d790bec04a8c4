"""What bytes each token stands for: one table that serves whole decoding and incremental decoding, so that the two can't differ.

Both kinds of vocabulary in use spell text as a plain concatenation of per-token bytes:
byte-level BPE (Radford et al. 2019, section 2.2) writes each byte as one printable character; SentencePiece (Kudo and Richardson 2018,
section 3.2) writes a space as U+2581, and with byte fallback a lone byte as <0xNN>.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.core.errors import UnsupportedModelError

_SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """Token id -> the bytes that it adds to a text, filled as ids are met: `table[id]`.

    An id without an entry (a model's head can be wider than its tokenizer) has no bytes.
    strip_leading_space: whether a text loses the one space that encoding put before its first word.
    Raises UnsupportedModelError for a decoder that isn't a concatenation of bytes.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self._byte_level = kinds == ["ByteLevel"]
        self._byte_fallback = "ByteFallback" in kinds
        self._added = frozenset(backend.get_added_tokens_decoder()) if self._byte_level else frozenset()
        self.strip_leading_space = any(step["type"] == "Strip" and step["start"] == 1 for step in steps)
        sentence_piece = any(map(_writes_spaces, steps)) and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}
        if not self._byte_level and not sentence_piece:
            raise UnsupportedModelError(
                f"the tokenizer's decoder is {' + '.join(kinds) or 'absent'}; Octavo knows byte-level BPE (ByteLevel) and "
                "SentencePiece (Replace + ByteFallback + Fuse + Strip)"
            )

    def __missing__(self, token: int) -> bytes:
        spelled = self._spell(token)
        self[token] = spelled
        return spelled

    def _spell(self, token: int) -> bytes:
        try:
            text = self._backend.id_to_token(token)
        except OverflowError:
            text = None
        if text is None:
            return b""
        if self._byte_level:
            if token not in self._added:
                try:
                    return text.translate(_BYTE_OF_CHARACTER).encode("latin-1")
                except UnicodeEncodeError:
                    pass
            return text.encode()
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return text.replace(_SPACE_MARK, " ").encode()


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _writes_spaces(step: dict[str, Any]) -> bool:
    return (step["type"], step.get("pattern"), step.get("content")) == ("Replace", {"String": _SPACE_MARK}, " ")


def _byte_alphabet() -> dict[int, int]:
    """Character code -> byte, for the alphabet of byte-level BPE: printable Latin-1 stands for itself, the other bytes for the
    characters from U+0100 on.  Latin-1 characters outside the alphabet map to one that has no byte.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = dict.fromkeys(others, 0xFFFF)
    table.update({256 + i: byte for i, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _byte_alphabet()
