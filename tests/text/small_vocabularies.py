"""Tokenizers small enough to reason about, in the two kinds that models use, and one of single characters."""

from octavo.text import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_characters() -> list[str]:
    """The character of each byte 0 to 255 in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def byte_level_metadata(**changes) -> dict:
    """GGUF metadata of a byte-level vocabulary: 3 control tokens, 256 bytes, 5 merged words, 1 user-defined and 2 unused tokens."""
    merges = ["Ġ t", "h e", "Ġt he", "c a", "ca t"]
    tokens = [
        "<|end|>",
        "<|begin|>",
        "<|turn|>",
        *byte_characters(),
        *[m.replace(" ", "") for m in merges],
        "<think>",
        "[PAD0]",
        "[PAD1]",
    ]
    types = [CONTROL] * 3 + [NORMAL] * (256 + len(merges)) + [USER_DEFINED, UNUSED, UNUSED]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>{% endif %}",
    }
    return _changed(metadata, changes)


def sentence_piece_metadata(**changes) -> dict:
    """GGUF metadata of a SentencePiece vocabulary with byte fallback."""
    pieces = ["▁", "t", "h", "e", "c", "a", "s", "é", "th", "▁t", "▁th", "▁the", "▁c", "at", "▁cat", "he", "▁▁", "cat", "ts"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def byte_level(**changes) -> Tokenizer:
    return load_tokenizer(byte_level_metadata(**changes))


def sentence_piece(**changes) -> Tokenizer:
    return load_tokenizer(sentence_piece_metadata(**changes))


def _changed(metadata: dict, changes: dict) -> dict:
    """`changes` replace keys of tokenizer.ggml; a value of None takes a key away."""
    merged = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}
