"""A tokenizer from a folder in the layout of the Hugging Face hub."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.text.building import byte_level, surround
from octavo.text.tokenizer import Tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
# Tokenizer classes whose files mean what they say in full: add_bos_token is no business of theirs.
_SELF_CONTAINED = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the tokenizer of the model in `folder`.

    tokenizer.json, or vocab.json with merges.txt (byte-level BPE); special tokens from tokenizer_config.json and
    special_tokens_map.json; EOS ids also from generation_config.json, else config.json; the chat template from chat_template.jinja,
    chat_template.json, or tokenizer_config.json.  Raises ModelLoadError naming the file.
    """
    config = {**_json(folder, "special_tokens_map.json"), **_json(folder, "tokenizer_config.json")}
    backend = _backend(folder, config)
    named = {name: text for name in _NAMES if (text := _content(config.get(name))) is not None}
    ids = {name: backend.token_to_id(text) for name, text in named.items()}
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    _follow_flags(backend, config, bos, eos)
    ends = [eos, *_eos_ids(folder)]
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids=[token for token in ends if token is not None],
        chat_template=_chat_template(folder, config),
        named_tokens=named,
    )


def _backend(folder: Path, config: Mapping[str, Any]) -> Backend:
    if (file := folder / "tokenizer.json").is_file():
        try:
            return Backend.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{file}: not a tokenizer that the tokenizers library can read: {error}") from error
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_vocab_and_merges(folder, config)
    if (folder / "tokenizer.model").is_file():
        raise UnsupportedModelError(
            f"{folder}: has tokenizer.model but no tokenizer.json; convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    raise ModelLoadError(f"{folder}: no tokenizer.json, and no vocab.json with merges.txt")


def _from_vocab_and_merges(folder: Path, config: Mapping[str, Any]) -> Backend:
    file = folder / "merges.txt"
    merges = [line for line in file.read_text(encoding="utf-8").split("\n") if line and not line.startswith("#version")]
    backend = byte_level(_json(folder, "vocab.json"), merges, str(file))
    prefix = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    added = dict(_added_tokens(folder, config))
    for text in [_content(config.get(name)) for name in _NAMES]:
        if text is not None:
            added[text] = AddedToken(text, normalized=False, special=True)
    for token in added.values():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return backend


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, AddedToken]]:
    """Added tokens in order of their ids, as tokenizer_config.json or else added_tokens.json lists them."""
    described = {int(key): dict(value) for key, value in config.get("added_tokens_decoder", {}).items()}
    listed = {token: {"content": text} for text, token in _json(folder, "added_tokens.json").items()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for _, value in sorted({**listed, **described}.items()):
        yield value["content"], AddedToken(value["content"], **{flag: bool(value[flag]) for flag in flags if flag in value})


def _follow_flags(backend: Backend, config: Mapping[str, Any], bos: int | None, eos: int | None) -> None:
    """Make encoding add BOS and EOS as add_bos_token and add_eos_token say, where the tokenizer's class obeys them."""
    if config.get("tokenizer_class") in _SELF_CONTAINED:
        return
    around = backend.encode("").ids
    starts, ends = around[:1] == [bos], len(around) > 1 and around[-1] == eos
    wants_start, wants_end = config.get("add_bos_token", starts), config.get("add_eos_token", ends)
    if (wants_start, wants_end) != (starts, ends):
        surround(backend, bos=bos if wants_start else None, eos=eos if wants_end else None)


def _eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        ids = _json(folder, name).get("eos_token_id")
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    template = _json(folder, "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        return by_name.get("default", next(iter(by_name.values()), None))
    return template


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, Mapping) else token


def _json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    file = folder / name
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file}: holds a {type(value).__name__}; an object is expected")
    return value
