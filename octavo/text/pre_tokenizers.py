"""How byte-level vocabularies cut text before merging, by the names that GGUF files carry (`tokenizer.ggml.pre`).

The patterns are the models' own, as their `tokenizer.json` files state them; a wrong one gives plausible but different tokens, so a
name that isn't known is refused.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from octavo.core.errors import UnsupportedModelError


@dataclass(frozen=True)
class Cutting:
    """A way to cut text.

    patterns: regular expressions applied one after another; None of them means GPT-2's own (Radford et al. 2019).
    digits: whether each digit is cut off by itself first.  nfc: whether text is brought to Unicode's NFC form first.
    whole_words: a piece that is a token by itself is taken whole, without merging.  adds_bos: what a file means that doesn't say.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self, *, add_space_prefix: bool) -> PreTokenizer:
        steps: list[PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=add_space_prefix, use_regex=not self.patterns))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.nfc else None


def cutting_named(name: str) -> Cutting:
    """The way to cut of a pre-tokenizer's name.  Raises UnsupportedModelError with the names that are known."""
    for names, cutting in _CUTTINGS.items():
        if name in names:
            return cutting
    known = ", ".join(sorted(name for names in _CUTTINGS for name in names))
    raise UnsupportedModelError(f"tokenizer.ggml.pre={name!r} is a pre-tokenizer that Octavo doesn't know; known are {known}")


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words_of_letters(digits: str) -> str:
    """Llama 3's pattern; families differ in how many digits stay together."""
    return _CONTRACTIONS + rf"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|" + _WHITE_SPACE


def _words_by_case(ending: str, digits: str) -> str:
    """The pattern of Tekken and GPT-4o, which cuts where lower case turns to upper."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}[{_UPPER}]*[{_LOWER}]+{ending}|{lead}[{_UPPER}]+[{_LOWER}]*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + _WHITE_SPACE


_LLAMA_3 = (_words_of_letters(r"\p{N}{1,3}"),)

_CUTTINGS: dict[tuple[str, ...], Cutting] = {
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "a.x-4.0", "mellum"): Cutting(),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"): Cutting(digits=True),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): Cutting(
        _LLAMA_3, whole_words=True, adds_bos=True
    ),
    ("dbrx", "smaug-bpe"): Cutting(_LLAMA_3),
    ("qwen2", "deepseek-r1-qwen"): Cutting((_words_of_letters(r"\p{N}"),), nfc=True),
    ("stablelm2",): Cutting((_words_of_letters(r"\p{N}"),)),
    ("tekken",): Cutting((_words_by_case("", r"\p{N}"),), whole_words=True, adds_bos=True),
    ("gpt-4o", "llama4"): Cutting((_words_by_case(_CONTRACTIONS + "?", r"\p{N}{1,3}"),)),
    ("default",): Cutting((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
