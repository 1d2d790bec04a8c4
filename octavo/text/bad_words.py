"""Texts that must not be generated, as token sequences."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

# What follows a line end is tokenised as it would be inside a text: without the space that some tokenizers put before a text.
_ANCHOR = "\n"


def bad_word_ids(tokenizer: "Tokenizer", words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that spell each of `words` at the start of a word (after a space) and inside one, without repetitions.

    They are what `Request.bad_words_ids` takes.  A word spelled by other tokens than its own usual ones isn't caught.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.strip()
        for text in (word.lstrip(), " " + word.lstrip()) if bare else (word,):
            found[tuple(_spelled(tokenizer, text))] = None
    return tuple(ids for ids in found if ids)


def _spelled(tokenizer: "Tokenizer", text: str) -> list[int]:
    anchor = tokenizer.encode(_ANCHOR, add_special_tokens=False)
    ids = tokenizer.encode(_ANCHOR + text, add_special_tokens=False)
    return ids[len(anchor) :] if ids[: len(anchor)] == anchor else tokenizer.encode(text, add_special_tokens=False)
