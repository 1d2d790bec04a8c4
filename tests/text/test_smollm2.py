"""The default model's tokenizer, built from its GGUF file, against independent answers."""

import random
import time
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from octavo.models.fetch import cache_folder
from octavo.models.gguf_file import open_gguf
from octavo.text import Detokenizer, Tokenizer, load_tokenizer

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def file() -> Path:
    file = cache_folder() / NAME
    if not file.is_file():
        pytest.skip(f"{NAME} isn't in the cache folder; `make setup` fetches it")
    return file


@pytest.fixture(scope="module")
def tokenizer(file) -> Tokenizer:
    return load_tokenizer(open_gguf(file).metadata)


def varied_texts(count: int) -> list[str]:
    """Words, numbers, code, white space, scripts and emoji, mixed by a fixed seed."""
    parts = [
        "The quick brown fox", "don't", "I'LL", " 1234567890", "3.14159", "\n\n", "  ", "\t", "\r\n", "def f(x):\n    return x**2",
        "https://example.org/a?b=c&d", "Café déjà vu", "naïve", "Привет, мир", "こんにちは世界", "你好", "مرحبا", "नमस्ते", "한국어",
        "👩‍👩‍👧‍👦", "🤝🏽", "e\u0301", "\u00a0", "\u200b", "!!!", "...", "{\"a\": [1, 2]}", "<b>", "A" * 40, "$€£",
        "\0", "ſ", "ǅ", "²³¼",
    ]  # fmt: skip
    pick = random.Random(20240601)
    return ["".join(pick.choice(parts) + pick.choice(["", " ", ""]) for _ in range(pick.randint(1, 8))) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
    ],
)
def test_published_answers(tokenizer, text, ids):
    assert tokenizer.encode(text) == ids


def test_ids_equal_those_of_transformers(tokenizer, file):
    """K09-04: 700 varied strings, and decoding back."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    texts = varied_texts(700)
    without_digits = [text for text in texts if not any(map(str.isnumeric, text))]
    assert len(without_digits) > 100
    for text in without_digits:
        assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    # transformers ignores the pre-tokenizer that a GGUF file names; with the model's published one, texts with digits agree too.
    published = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(published)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert tokenizer.decode(ids) == text


def test_special_tokens_and_the_chat_template(tokenizer):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (1, (2,), 49152)
    assert tokenizer.special_ids == set(range(17))
    for token in tokenizer.special_ids:
        assert tokenizer.encode(tokenizer.id_to_token(token)) == [token]
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi <|im_end|>"}])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    theirs = tokenizer.encode("user\nHi <|im_end|>", parse_special=False)
    assert ids == [*tokenizer.encode(system), 1, *theirs, *tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n")]
    assert ids.count(2) == 2


def test_streaming_equals_whole_decoding(tokenizer):
    """K07-03."""
    for text in varied_texts(300):
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer)
        assert "".join([detokenizer.push((token,)) for token in ids]) + detokenizer.flush() == text


def test_a_long_run_of_one_letter_is_near_linear(tokenizer):
    """K12-03."""

    def cost(length):
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            tokenizer.encode("a" * length)
            best = min(best, time.thread_time() - began)
        return best

    assert cost(16_000) < 20 * cost(2_000)
