"""Tokenizers from a folder, against transformers reading the same files."""

import json

import pytest
from small_vocabularies import byte_level_metadata
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.text import load_tokenizer

TEXTS = ["the cat", " the  cat\n", "<|end|>the", "é🤝🏽字", "it's 123", ""]


def write(folder, **files):
    for name, value in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return folder


def vocab_and_merges():
    metadata = byte_level_metadata()
    tokens = [token for token in metadata["tokenizer.ggml.tokens"] if not token.startswith("[PAD")]
    return {token: i for i, token in enumerate(tokens)}, metadata["tokenizer.ggml.merges"]


def tokenizer_json(folder, *, bos=True):
    vocab, merges = vocab_and_merges()
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|end|>", "<|begin|>", "<|turn|>")])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    return folder


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}


def test_tokenizer_json(tmp_path):
    write(
        tokenizer_json(tmp_path),
        tokenizer_config_json={**CONFIG, "chat_template": "T"},
        generation_config_json={"eos_token_id": [2, 0]},
    )
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.chat_template) == (1, (0, 2), "T")
    assert tokenizer.special_ids == {0, 1, 2}
    assert len(tokenizer.encode("the cat the cat")) > 3  # no truncation, no padding
    assert tokenizer.encode("the")[0] == 1


def test_tokenizer_json_against_transformers(tmp_path):
    from transformers import AutoTokenizer

    write(tokenizer_json(tmp_path), tokenizer_config_json={**CONFIG, "eos_token": "<|end|>"})
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text, truncation=False, padding=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_vocab_and_merges_against_transformers(tmp_path):
    from transformers import GPT2Tokenizer

    vocab, merges = vocab_and_merges()
    write(
        tmp_path,
        vocab_json=vocab,
        merges_txt="#version: 0.2\n" + "\n".join(merges) + "\n",
        special_tokens_map_json={"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"},
    )
    ours = load_tokenizer(tmp_path)
    special = {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
    theirs = GPT2Tokenizer.from_pretrained(tmp_path, **special)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.eos_token_ids == (0,) and ours.special_ids == {0}


def test_a_class_that_obeys_add_bos_token(tmp_path):
    """OPT's files: byte-level, without a word on BOS but this flag."""
    vocab, merges = vocab_and_merges()
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True}
    write(tmp_path, vocab_json=vocab, merges_txt="\n".join(merges), tokenizer_config_json=config)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("the")[0] == 1 and tokenizer.encode("the", add_special_tokens=False)[0] != 1


def test_a_flag_takes_bos_away_again(tmp_path):
    config = {**CONFIG, "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}
    write(tokenizer_json(tmp_path), tokenizer_config_json=config)
    assert load_tokenizer(tmp_path).encode("the")[0] != 1


def test_added_tokens_of_the_config_keep_their_ids(tmp_path):
    vocab, merges = vocab_and_merges()
    described = {str(len(vocab) + i): {"content": text, "special": i == 1} for i, text in enumerate(["<new>", "<newer>"])}
    write(tmp_path, vocab_json=vocab, merges_txt="\n".join(merges), tokenizer_config_json={"added_tokens_decoder": described})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<new><newer>") == [len(vocab), len(vocab) + 1]
    assert tokenizer.special_ids == {len(vocab) + 1}


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"chat_template_jinja": "J", "tokenizer_config_json": {"chat_template": "C"}}, "J"),
        ({"chat_template_json": {"chat_template": "S"}}, "S"),
        (
            {
                "tokenizer_config_json": {
                    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
        ),
        ({}, None),
    ],
)
def test_where_the_chat_template_is(tmp_path, files, template):
    assert load_tokenizer(write(tokenizer_json(tmp_path), **files)).chat_template == template


def test_eos_ids_of_the_model_config_count_without_a_generation_config(tmp_path):
    write(tokenizer_json(tmp_path), config_json={"eos_token_id": 2})
    assert load_tokenizer(tmp_path).eos_token_ids == (2,)


def test_what_can_not_be_read_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json, and no vocab\.json"):
        load_tokenizer(tmp_path)
    write(tmp_path, tokenizer_model="binary")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model but no tokenizer\.json"):
        load_tokenizer(tmp_path)
    write(tmp_path, tokenizer_json="{")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    write(tokenizer_json(tmp_path), tokenizer_config_json="[1]")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: holds a list"):
        load_tokenizer(tmp_path)


def test_merges_that_do_not_fit_are_named(tmp_path):
    vocab, _ = vocab_and_merges()
    write(tmp_path, vocab_json=vocab, merges_txt="a b c")
    with pytest.raises(ModelLoadError, match=r"merges\.txt: the entry 'a b c'"):
        load_tokenizer(tmp_path)
    write(tmp_path, vocab_json=vocab, merges_txt="not there")
    with pytest.raises(ModelLoadError, match="don't fit the vocabulary"):
        load_tokenizer(tmp_path)


def test_a_decoder_that_is_no_concatenation_is_refused(tmp_path):
    backend = Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModelError, match="decoder is WordPiece"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("tokenizer_config", {"bos_token": 5}),
        ("tokenizer_config", {"eos_token": {"text": "<|end|>"}}),
        ("special_tokens_map", {"unk_token": ["x"]}),
        ("tokenizer_config", {"add_bos_token": "yes"}),
        ("tokenizer_config", {"chat_template": 3}),
        ("tokenizer_config", {"chat_template": ["{{ messages }}"]}),
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}),
        ("chat_template", {"chat_template": {"default": "x"}}),
        ("generation_config", {"eos_token_id": ["2"]}),
        ("config", {"eos_token_id": True}),
        ("config", {"eos_token_id": -1}),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path, file, fields):
    (name,) = fields
    with pytest.raises(ModelLoadError, match=rf"{file}\.json: {name} is .*; it must be"):
        load_tokenizer(write(tokenizer_json(tmp_path), **{f"{file}_json": fields}))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "<|a|>"}}}, "added_tokens_decoder is"),
        ("tokenizer_config", {"added_tokens_decoder": {"3": "<|a|>"}}, "added_tokens_decoder is"),
        ("tokenizer_config", {"added_tokens_decoder": ["<|a|>"]}, "added_tokens_decoder is"),
        ("tokenizer_config", {"add_prefix_space": 1}, "add_prefix_space is 1"),
        ("added_tokens", {"<|a|>": "3"}, r"<\|a\|> is '3'"),
        ("vocab", {"a": None}, "a is None; it must be a token id"),
    ],
)
def test_a_wrong_field_beside_merges_is_named(tmp_path, file, fields, message):
    vocab, merges = vocab_and_merges()
    write(tmp_path, vocab_json=vocab, merges_txt="\n".join(merges))
    with pytest.raises(ModelLoadError, match=rf"{file}\.json: {message}"):
        load_tokenizer(write(tmp_path, **{f"{file}_json": fields}))


@pytest.mark.parametrize("name", ["merges.txt", "chat_template.jinja", "tokenizer_config.json"])
def test_a_file_that_is_not_utf8_is_named(tmp_path, name):
    vocab, merges = vocab_and_merges()
    write(tmp_path, vocab_json=vocab, merges_txt="\n".join(merges))
    (tmp_path / name).write_bytes(b"ab \xff")
    with pytest.raises(ModelLoadError, match=rf"{name}: not UTF-8 text: byte 3 is 0xff"):
        load_tokenizer(tmp_path)


def test_json_nested_beyond_every_stack_is_named(tmp_path):
    write(tokenizer_json(tmp_path), tokenizer_config_json="[" * 100_000)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: not valid JSON"):
        load_tokenizer(tmp_path)
