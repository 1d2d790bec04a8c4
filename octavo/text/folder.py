"""A tokenizer from a folder in the layout of the Hugging Face hub."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.text.building import byte_level, surround
from octavo.text.settings import Settings, read_text
from octavo.text.tokenizer import Tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
# Tokenizer classes whose files mean what they say in full: add_bos_token is no business of theirs.
_SELF_CONTAINED = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the tokenizer of the model in `folder`.

    tokenizer.json, or vocab.json with merges.txt (byte-level BPE); special tokens from tokenizer_config.json and
    special_tokens_map.json; EOS ids also from generation_config.json, else config.json; the chat template from chat_template.jinja,
    chat_template.json, or tokenizer_config.json.  Raises ModelLoadError naming the file, and the field.
    """
    config = Settings(folder, "special_tokens_map.json", "tokenizer_config.json")
    named = {name: text for name in _NAMES if (text := config.token(name)) is not None}
    backend = _backend(folder, config)
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


def _backend(folder: Path, config: Settings) -> Backend:
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


def _from_vocab_and_merges(folder: Path, config: Settings) -> Backend:
    file = folder / "merges.txt"
    merges = [line for line in read_text(file).split("\n") if line and not line.startswith("#version")]
    backend = byte_level(Settings(folder, "vocab.json").vocabulary(), merges, str(file))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.flag("add_prefix_space", False))
    added = dict(_added_tokens(folder, config))
    for text in [config.token(name) for name in _NAMES]:
        if text is not None:
            added[text] = AddedToken(text, normalized=False, special=True)
    for token in added.values():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return backend


def _added_tokens(folder: Path, config: Settings) -> Iterator[tuple[str, AddedToken]]:
    """Added tokens in order of their ids, as tokenizer_config.json or else added_tokens.json lists them."""
    described = config.added_tokens("added_tokens_decoder")
    listed = {token: {"content": text} for text, token in Settings(folder, "added_tokens.json").vocabulary().items()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for _, value in sorted({**listed, **described}.items()):
        yield value["content"], AddedToken(value["content"], **{flag: bool(value[flag]) for flag in flags if flag in value})


def _follow_flags(backend: Backend, config: Settings, bos: int | None, eos: int | None) -> None:
    """Make encoding add BOS and EOS as add_bos_token and add_eos_token say, where the tokenizer's class obeys them."""
    if config.raw("tokenizer_class") in _SELF_CONTAINED:
        return
    around = backend.encode("").ids
    starts, ends = around[:1] == [bos], len(around) > 1 and around[-1] == eos
    wants_start, wants_end = config.flag("add_bos_token", starts), config.flag("add_eos_token", ends)
    if (wants_start, wants_end) != (starts, ends):
        surround(backend, bos=bos if wants_start else None, eos=eos if wants_end else None)


def _eos_ids(folder: Path) -> list[int]:
    return Settings(folder, "generation_config.json").ids("eos_token_id") or Settings(folder, "config.json").ids("eos_token_id")


def _chat_template(folder: Path, config: Settings) -> str | None:
    if (file := folder / "chat_template.jinja").is_file():
        return read_text(file)
    beside = Settings(folder, "chat_template.json")
    return (beside if "chat_template" in beside else config).template("chat_template")
