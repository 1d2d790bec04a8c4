"""Incremental text equals whole decoding, whatever the bytes, the cuts and the prompt."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_vocabularies import byte_level, sentence_piece

from octavo.text import Detokenizer

TOKENIZERS = {
    "byte_level": byte_level(),
    "sentence_piece": sentence_piece(),
    "sentence_piece_without_prefix": sentence_piece(add_space_prefix=False),
}
KINDS = pytest.mark.parametrize("kind", TOKENIZERS)
# Beyond the vocabulary too (K09-06).
IDS = st.lists(st.integers(0, 300), max_size=30)
TEXTS = st.text(
    st.one_of(st.sampled_from(list(" thecats\n\ufffdé🤝🏽👩‍👩‍👧字")), st.characters(exclude_categories=["Cs"])), max_size=20
)


def streamed(tokenizer, ids, prompt=(), step=1, **options):
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return "".join([detokenizer.push(ids[i : i + step]) for i in range(0, len(ids), step)]) + detokenizer.flush()


@KINDS
@given(ids=IDS, step=st.integers(1, 4), skip=st.booleans())
def test_deltas_concatenate_to_the_whole_decoding(kind, ids, step, skip):
    """K07-03."""
    tokenizer = TOKENIZERS[kind]
    assert streamed(tokenizer, ids, step=step, skip_special_tokens=skip) == tokenizer.decode(ids, skip)


@KINDS
@given(text=TEXTS)
def test_text_comes_back(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert streamed(tokenizer, ids) == text


@KINDS
@given(prompt=IDS, ids=IDS)
@example(prompt=[1], ids=[259, 259, 262])  # BOS alone, then "  e" in SentencePiece
def test_text_is_the_whole_decoding_less_the_prompts(kind, prompt, ids):
    """K07-04, also when the prompt ends inside a character."""
    tokenizer = TOKENIZERS[kind]
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    text = streamed(tokenizer, ids, prompt)
    if whole.startswith(before):
        assert text == whole[len(before) :]
    else:  # the output completed the prompt's last character
        assert before.endswith("\ufffd") and whole == before[:-1] + text


@KINDS
@pytest.mark.parametrize("prompt", ["the", "the ", "", "cat\n", "é"])
@pytest.mark.parametrize("output", [" ", " the", "  ", "\n", "the", "  cat"])
def test_leading_spaces(kind, prompt, output):
    """K07-04."""
    tokenizer = TOKENIZERS[kind]
    prompt_ids = tokenizer.encode(prompt)
    output_ids = tokenizer.encode(output, add_special_tokens=False)
    expected = tokenizer.decode(prompt_ids + output_ids)[len(tokenizer.decode(prompt_ids)) :]
    assert streamed(tokenizer, output_ids, prompt_ids) == expected
    if kind != "sentence_piece":
        assert expected == output


@KINDS
def test_a_character_waits_for_its_last_byte(kind):
    tokenizer = TOKENIZERS[kind]
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("the", add_special_tokens=False))
    offset = 3  # both vocabularies begin with three special tokens and the 256 bytes
    deltas = [detokenizer.push([offset + byte]) for byte in "🤝é".encode()]
    assert deltas == ["", "", "", "🤝", "", "é"]
    assert detokenizer.flush() == ""


@KINDS
def test_bytes_that_never_become_a_character_are_delivered_at_once(kind):
    """K07-05: a long run that really decodes to U+FFFD."""
    tokenizer = TOKENIZERS[kind]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([3 + 0x80]) for _ in range(2000)] == ["\ufffd"] * 2000
    assert detokenizer.push([3 + ord("a")]) == "a"
    assert [detokenizer.push([3 + 0xF0]) for _ in range(3)] == ["", "\ufffd", "\ufffd"]
    assert detokenizer.flush() == "\ufffd" and detokenizer.flush() == ""


def test_special_tokens_are_left_out_or_spelled():
    tokenizer = TOKENIZERS["byte_level"]
    ids = [1, *tokenizer.encode("the"), 0]
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == "the"
    assert tokenizer.decode(ids, False) == streamed(tokenizer, ids, skip_special_tokens=False) == "<|begin|>the<|end|>"


def test_the_cost_of_a_token_is_flat():
    """K12-02."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("the cat 🤝 " * 100)

    def cost(repeats):
        best = float("inf")
        for _ in range(5):
            detokenizer = Detokenizer(tokenizer)
            began = time.thread_time()
            for _ in range(repeats):
                for token in ids:
                    detokenizer.push((token,))
            best = min(best, (time.thread_time() - began) / repeats)
        return best

    assert cost(32) < 6 * cost(1)
