"""Tokenizers from GGUF metadata: special tokens, BOS, merging order, and what is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabularies import byte_level, byte_level_metadata, sentence_piece, sentence_piece_metadata

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.text import load_tokenizer
from octavo.text.pre_tokenizers import cutting_named

BYTE_LEVEL = byte_level()
SENTENCE_PIECE = sentence_piece()


def test_special_tokens_are_single_ids_and_unused_ones_have_no_entry():
    """K09-04, K09-06."""
    assert BYTE_LEVEL.encode("<|turn|>the cat<think><|end|>") == [
        2,
        *BYTE_LEVEL.encode("the cat"),
        BYTE_LEVEL.token_to_id("<think>"),
        0,
    ]
    assert BYTE_LEVEL.special_ids == {0, 1, 2}
    padded = len(byte_level_metadata()["tokenizer.ggml.tokens"]) - 1
    for beyond in (padded, padded + 1000, 2**40):
        assert BYTE_LEVEL.id_to_token(padded) is None
        assert BYTE_LEVEL.decode([beyond]) == ""
    assert len(BYTE_LEVEL.encode("[PAD0]")) == len("[PAD0]")


def test_bos_and_eos_as_the_file_says():
    the = BYTE_LEVEL.encode("the", add_special_tokens=False)
    assert BYTE_LEVEL.encode("the") == the
    both = byte_level(add_bos_token=True, add_eos_token=True)
    assert both.encode("the") == [1, *the, 0]
    assert both.encode("the", add_special_tokens=False) == the
    assert (both.bos_token_id, both.eos_token_ids) == (1, (0,))
    # What a file means that says nothing.
    assert SENTENCE_PIECE.encode("the")[0] == 1
    assert sentence_piece(add_bos_token=False).encode("the")[0] != 1
    assert byte_level(pre="llama-bpe").encode("the")[0] == 1


def test_a_text_that_brings_its_bos_gets_no_second_one():
    tokenizer = byte_level(add_bos_token=True)
    assert tokenizer.encode("<|begin|>the") == tokenizer.encode("the")


def test_every_end_of_turn_token_ends_an_output():
    tokens = ["<|end|>", "<|begin|>", "<|im_end|>", *byte_level_metadata()["tokenizer.ggml.tokens"][3:]]
    assert byte_level(tokens=tokens, eos_token_id=1, eot_token_id=2).eos_token_ids == (1, 2, 0)
    assert byte_level(eos_token_id=None).eos_token_ids == (0,)


@given(st.text(" thecasé字\n", max_size=25))
def test_sentence_piece_merges_the_best_scored_pair_first(text):
    assert SENTENCE_PIECE.encode(text, add_special_tokens=False) == merged(text)


def merged(text):
    """SentencePiece BPE straight from its definition: merge the adjacent pair of the highest score, the leftmost among equals."""
    metadata = sentence_piece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens[259:], metadata["tokenizer.ggml.scores"][259:], strict=True))
    symbols = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids = []
    for symbol in symbols:
        ids += [tokens.index(symbol)] if symbol in scores else [3 + byte for byte in symbol.encode()]
    return ids


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte_level", "sentence_piece"])
@given(st.text(" thecats\n\u2581é字🤝<0x41>", max_size=20))
def test_decoding_agrees_with_the_tokenizers_library(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)
    assert tokenizer.decode(ids, False) == tokenizer._backend.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "it's 2024\n\n  ok", ["it", "'s", "Ġ2024", "ĊĊĠ", "Ġok"]),
        ("smollm", "it's 2024", ["it", "'s", "Ġ", "2", "0", "2", "4"]),
        ("llama-bpe", "IT'S 20245\n\n  ok (x)", ["IT", "'S", "Ġ", "202", "45", "ĊĊ", "Ġ", "Ġok", "Ġ(", "x", ")"]),
        ("qwen2", "it's 20\n ok", ["it", "'s", "Ġ", "2", "0", "Ċ", "Ġok"]),
        ("tekken", "camelCase 12/", ["camel", "Case", "Ġ", "1", "2", "/"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", "Ġ", "123", "4"]),
        ("default", "a=b 1234", ["a", "=", "b", "Ġ", "123", "4"]),
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_says(name, text, pieces):
    cutter = cutting_named(name).pre_tokenizer(add_space_prefix=False)
    assert [piece for piece, _ in cutter.pre_tokenize_str(text)] == pieces


def test_a_missing_pre_tokenizer_is_warned_of_and_an_unknown_one_refused():
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre"):
        byte_level(pre=None)
    with pytest.raises(UnsupportedModelError, match=r"'martian'.*smollm"):
        byte_level(pre="martian")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
        ({"eos_token_id": 99999}, "eos_token_id=99999"),
        ({"eos_token_id": "2"}, "eos_token_id='2'"),
        ({"bos_token_id": 1.5}, "bos_token_id=1.5"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'"),
        ({"add_space_prefix": 3}, "add_space_prefix is 3"),
        ({"pre": ["gpt-2"]}, "tokenizer.ggml.pre="),
        ({"merges": ["not there"]}, "merges don't fit the vocabulary"),
        ({"merges": ["alone"]}, "merges: the entry 'alone'"),
        ({"merges": "x"}, "merges isn't a list"),
        ({"tokens": [b"x"]}, "tokens isn't a list of str"),
    ],
)
def test_broken_fields_are_named(changes, message):
    with pytest.raises(ModelLoadError, match=message):
        byte_level(**changes)


def test_other_kinds_are_refused():
    with pytest.raises(UnsupportedModelError, match="'bert'"):
        byte_level(model="bert")
    with pytest.raises(ModelLoadError, match="scores has 3 entries"):
        sentence_piece(scores=[1.0, 2.0, 3.0])


def test_loading_takes_metadata_as_it_is():
    metadata = byte_level_metadata()
    load_tokenizer(metadata)
    assert metadata == byte_level_metadata()


@pytest.mark.parametrize("template", [3, ["{{ messages }}"]])
def test_a_chat_template_that_is_no_text_is_named(template):
    with pytest.raises(ModelLoadError, match=r"tokenizer\.chat_template is .*; it must be a text"):
        load_tokenizer({**byte_level_metadata(), "tokenizer.chat_template": template})
