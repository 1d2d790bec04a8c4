"""From tokens to what the caller sees: characters, stop strings and min_tokens together."""

from small_vocabularies import byte_level

from octavo.core.params import SamplingParams
from octavo.text import OutputText, bad_word_ids

TOKENIZER = byte_level()


def ids_of(text):
    return [3 + byte for byte in text.encode()]


def run(text, size=1, prompt=(), **params):
    output = OutputText(TOKENIZER, prompt, SamplingParams(**params))
    ids = ids_of(text)
    shown = "".join(output.push(ids[i : i + size]) for i in range(0, len(ids), size))
    return shown + output.finish(), output.stop_reason, output.num_tokens


def test_a_stop_string_that_ends_inside_a_chunk_says_where():
    for size in (1, 2, 3, 10):
        assert run("héllo<stop>rest", size, stop="<stop>") == ("héllo", "<stop>", 12)


def test_a_stop_string_of_several_bytes_per_character():
    assert run("a🤝🏽b", stop=["🏽"]) == ("a🤝", "🏽", 9)


def test_without_a_stop_everything_comes():
    assert run("almost <sto", stop=["<stop>"]) == ("almost <sto", None, 11)
    assert run("plain 🤝") == ("plain 🤝", None, 10)


def test_a_character_that_is_cut_off_comes_out_replaced():
    output = OutputText(TOKENIZER, [], SamplingParams())
    assert output.push(ids_of("a🤝")[:3]) == "a"
    assert output.finish() == "\ufffd"


def test_stop_strings_are_looked_for_after_min_tokens():
    params = {"stop": ["ab"], "max_tokens": 50}
    assert run("ab-ab-ab", min_tokens=2, **params)[:2] == ("ab-", "ab")
    assert run("ab-ab-ab", min_tokens=3, size=8, **params) == ("ab-", "ab", 5)
    assert run("ab-ab-ab", min_tokens=4, **params) == ("ab-ab-", "ab", 8)
    assert run("ab-ab-ab", min_tokens=8, **params) == ("ab-ab-ab", None, 8)


def test_special_tokens_as_asked():
    for skip, shown in ((True, "a"), (False, "a<|turn|>")):
        output = OutputText(TOKENIZER, [], SamplingParams(skip_special_tokens=skip))
        assert output.push([*ids_of("a"), 2]) == shown


def test_bad_words_inside_and_at_the_start_of_a_word():
    the, space_the, cat = TOKENIZER.token_to_id("he"), TOKENIZER.token_to_id("Ġthe"), TOKENIZER.token_to_id("cat")
    space, t, newline = ids_of(" ")[0], ids_of("t")[0], ids_of("\n")[0]
    assert bad_word_ids(TOKENIZER, ["the"]) == ((t, the), (space_the,))
    assert bad_word_ids(TOKENIZER, [" cat", "cat"]) == ((cat,), (space, cat))
    assert bad_word_ids(TOKENIZER, ["\n"]) == ((newline,),)
    assert bad_word_ids(TOKENIZER, []) == ()
