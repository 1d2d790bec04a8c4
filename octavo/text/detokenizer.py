"""`Detokenizer`: tokens to text, as they come."""

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

# Bytes of an incomplete UTF-8 character, at most.
_MOST_PENDING = 3


class Detokenizer:
    """The text of one sample, delivered as its tokens arrive.

    The concatenation of all deltas equals `decode(prompt + output)` less its prefix `decode(prompt)`: a first space is kept where the
    text goes on from a prompt.  A character whose bytes are still coming is held (3 bytes at most); bytes that can't become a
    character come out as U+FFFD at once.  The cost of a token doesn't depend on how many came before.
    """

    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = self._bytes_of.strip_leading_space and not any(map(self._spelled, prompt_ids))
        # A prompt can end inside a character: the output then completes it, or the prompt's own text ended in U+FFFD already.
        self._decoder.decode(self._open_character(prompt_ids))
        self._prompt_broken = self._decoder.getstate()[0] != b""

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that `token_ids` complete."""
        return self._take(b"".join(map(self._spelled, token_ids)), final=False)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never came to its end, else nothing."""
        return self._take(b"", final=True)

    def _spelled(self, token: int) -> bytes:
        return b"" if token in self._skipped else self._bytes_of[token]

    def _take(self, data: bytes, *, final: bool) -> str:
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        text = self._decoder.decode(data, final)
        if self._prompt_broken and text:
            self._prompt_broken = False
            text = text.removeprefix("\ufffd")
        return text

    def _open_character(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes from their last lead byte on, if that is near enough to the end to be incomplete."""
        data = b""
        for token in reversed(prompt_ids):
            data = self._spelled(token) + data
            if len(data) >= _MOST_PENDING:
                break
        for place in range(1, min(len(data), _MOST_PENDING) + 1):
            if data[-place] >= 0xC0:
                return data[-place:]
            if data[-place] < 0x80:
                break
        return b""
