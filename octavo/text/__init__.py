"""Text to tokens and back: tokenizers, chat templates, incremental text, stop strings.  Imports no torch."""

from octavo.text.bad_words import bad_word_ids
from octavo.text.detokenizer import Detokenizer
from octavo.text.loading import load_tokenizer
from octavo.text.output_text import OutputText
from octavo.text.stops import StopChecker
from octavo.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "OutputText", "StopChecker", "Tokenizer", "bad_word_ids", "load_tokenizer"]
