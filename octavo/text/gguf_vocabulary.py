"""A tokenizer from the metadata of a GGUF file (the keys `tokenizer.ggml.*`)."""

import warnings
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.text.building import add_tokens, byte_level, sentence_piece, surround
from octavo.text.pre_tokenizers import cutting_named
from octavo.text.tokenizer import Tokenizer

# `tokenizer.ggml.token_type`.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Control tokens that end a turn; files often name only one of a model's several.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `metadata` (key -> value, lists as lists) describes.

    Kinds: "gpt2" (byte-level BPE, cut as `tokenizer.ggml.pre` says) and "llama" (SentencePiece BPE).  Tokens of type "unused" get no
    entry: they pad the vocabulary.  Raises UnsupportedModelError for other kinds, ModelLoadError for a missing or inconsistent field.
    """
    return _GGUFVocabulary(metadata).tokenizer()


class _GGUFVocabulary:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: list[str] = self._list("tokens", str)
        untyped = self._get("token_type") is None
        self._types: list[int] = [_NORMAL] * len(self._tokens) if untyped else self._list("token_type", int)
        if len(self._types) != len(self._tokens):
            raise ModelLoadError(
                f"tokenizer.ggml.token_type has {len(self._types)} entries for the {len(self._tokens)} of tokenizer.ggml.tokens"
            )

    def tokenizer(self) -> Tokenizer:
        kind = self._required("model")
        if kind == "gpt2":
            backend, adds_bos = self._byte_level()
        elif kind == "llama":
            backend, adds_bos = self._sentence_piece()
        else:
            raise UnsupportedModelError(
                f"tokenizer.ggml.model={kind!r}; Octavo knows 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
            )
        add_tokens(backend, special=self._of_type(_CONTROL, _UNKNOWN), plain=self._of_type(_USER_DEFINED))
        bos, eos = self._id("bos_token_id"), self._id("eos_token_id")
        surround(
            backend,
            bos=bos if self._flag("add_bos_token", adds_bos) else None,
            eos=eos if self._flag("add_eos_token", False) else None,
        )
        named = {name: self._tokens[token] for name, key in _IDS.items() if (token := self._id(key)) is not None}
        return Tokenizer(
            backend,
            bos_token_id=bos,
            eos_token_ids=self._ends(),
            chat_template=self._chat_template(),
            named_tokens=named,
        )

    def _byte_level(self) -> tuple[Backend, bool]:
        name = self._get("pre")
        if name is None:
            warnings.warn(
                "the GGUF file doesn't name its pre-tokenizer (tokenizer.ggml.pre): 'default' is taken, and tokens may differ from "
                "the model's own; convert the model again with a newer converter",
                stacklevel=4,
            )
            name = "default"
        cutting = cutting_named(name)
        merges = self._list("merges", str)
        backend = byte_level(self._vocab(), merges, "tokenizer.ggml.merges", whole_words=cutting.whole_words)
        backend.pre_tokenizer = cutting.pre_tokenizer(add_space_prefix=self._flag("add_space_prefix", False))
        if (normalizer := cutting.normalizer()) is not None:
            backend.normalizer = normalizer
        return backend, cutting.adds_bos

    def _sentence_piece(self) -> tuple[Backend, bool]:
        scores = self._list("scores", float)
        if len(scores) != len(self._tokens):
            raise ModelLoadError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(self._tokens)} tokens")
        mergeable = {
            token: score
            for token, score, kind in zip(self._tokens, scores, self._types, strict=True)
            if kind in (_NORMAL, _USER_DEFINED)
        }
        unknown = self._id("unknown_token_id")
        backend = sentence_piece(
            self._vocab(),
            mergeable,
            unk=self._tokens[0 if unknown is None else unknown],
            add_space_prefix=self._flag("add_space_prefix", True),
        )
        return backend, True

    def _vocab(self) -> dict[str, int]:
        return {text: token for token, (text, kind) in enumerate(zip(self._tokens, self._types, strict=True)) if kind != _UNUSED}

    def _of_type(self, *kinds: int) -> list[str]:
        return [text for text, kind in zip(self._tokens, self._types, strict=True) if kind in kinds]

    def _ends(self) -> list[int]:
        named = [self._id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
        controls = {text: token for token, (text, kind) in enumerate(zip(self._tokens, self._types, strict=True)) if kind == _CONTROL}
        return [token for token in [*named, *map(controls.get, _TURN_ENDS)] if token is not None]

    def _id(self, key: str) -> int | None:
        token = self._get(key)
        if token is None:
            return None
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < len(self._tokens):
            raise ModelLoadError(f"tokenizer.ggml.{key}={token!r} isn't among the {len(self._tokens)} tokens of the file")
        return token

    def _flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ModelLoadError(f"tokenizer.ggml.{key} is {value!r}; it must be true or false")
        return value

    def _chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelLoadError(f"tokenizer.chat_template is {repr(template)[:80]}; it must be a text")
        return template

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _list(self, key: str, kind: type) -> list[Any]:
        value = self._required(key)
        if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
            raise ModelLoadError(f"tokenizer.ggml.{key} isn't a list of {kind.__name__}")
        return value

    def _required(self, key: str) -> Any:
        if (value := self._get(key)) is None:
            raise ModelLoadError(f"the GGUF file has no tokenizer.ggml.{key}: it holds no complete tokenizer")
        return value
