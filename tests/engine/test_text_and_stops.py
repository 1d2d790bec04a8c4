"""Field cases of kind 7, through the whole engine: what a client reads when the tokens are forced."""

import random

import pytest
from engine_models import start
from forced_runner import ForcedRunner

from octavo import SamplingParams


@pytest.fixture(scope="module")
def llm():
    with start(num_blocks=4096) as llm:
        yield llm


def run(llm, answers, params, prompts=None):
    """Outputs and, per request, the list of text deltas, with forced answers."""
    llm.engine.runner = ForcedRunner(answers)
    prompts = prompts or [[5]] * len(answers)
    requests = llm.inputs.requests(prompts, [params] * len(prompts), [{}] * len(prompts))
    for request in requests:
        llm.engine.add_request(request)
    deltas = {request.request_id: [] for request in requests}
    while llm.engine.has_work:
        for output in llm.engine.step():
            deltas[output.request_id].extend(output.outputs)
    llm.check()
    return [deltas[request.request_id] for request in requests]


def spelled(llm, text):
    return llm.tokenizer.encode(text)


def test_k07_01_no_character_of_a_stop_is_ever_sent(llm):
    rng = random.Random(5)
    for _ in range(60):
        text = "".join(rng.choice("abAB ") for _ in range(40))
        stops = ["".join(rng.choice("abAB ") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
        [deltas] = run(llm, [spelled(llm, text)], SamplingParams(max_tokens=40, stop=stops, ignore_eos=True))
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
        expected, stop = (text, None) if not ends else (text[: min(ends)[0] + min(ends)[1]], min(ends)[2])
        assert "".join(delta.text for delta in deltas) == expected
        assert deltas[-1].finish_reason == ("length" if stop is None else "stop")
        assert deltas[-1].stop_reason == stop
        if stop is not None:  # nothing was generated after the match
            assert len(deltas) == text.find(stop) + len(stop)


def test_k07_02_a_stop_is_cut_out_or_kept_whole(llm):
    answer = spelled(llm, "alpha beta gamma delta")
    [deltas] = run(llm, [answer], SamplingParams(max_tokens=99, stop="beta gamma"))
    assert "".join(delta.text for delta in deltas) == "alpha "
    params = SamplingParams(max_tokens=99, stop="beta gamma", include_stop_str_in_output=True)
    assert "".join(delta.text for delta in run(llm, [answer], params)[0]) == "alpha beta gamma"


def test_k07_03_characters_come_whole(llm):
    text = "a👩🏽‍🔬é漢字\u0301 ẞ🇫🇷 end"
    ids = spelled(llm, text)
    [deltas] = run(llm, [ids], SamplingParams(max_tokens=len(ids), ignore_eos=True))
    assert "".join(delta.text for delta in deltas) == text
    assert not any("\ufffd" in delta.text for delta in deltas)


def test_k07_05_bytes_that_are_no_text_are_delivered_and_stops_still_work(llm):
    broken = llm.tokenizer.encode("é")[1]  # a lone continuation byte
    answer = [broken] * 300 + spelled(llm, "fine STOP more")
    [deltas] = run(llm, [answer], SamplingParams(max_tokens=400, stop="STOP"))
    assert "".join(delta.text for delta in deltas) == "\ufffd" * 300 + "fine "
    assert max(len(delta.text) for delta in deltas) <= 8


def test_min_tokens_lets_a_stop_string_through_until_then(llm):
    [deltas] = run(llm, [spelled(llm, "ababab")], SamplingParams(max_tokens=6, min_tokens=3, stop="ab", ignore_eos=True))
    assert "".join(delta.text for delta in deltas) == "abab"
    assert deltas[-1].stop_reason == "ab"


def test_special_tokens_are_left_out_of_the_text_unless_asked_for(llm):
    answer = [2, *spelled(llm, "x"), 3]
    hidden = SamplingParams(max_tokens=3, ignore_eos=True)
    shown = SamplingParams(max_tokens=3, ignore_eos=True, skip_special_tokens=False)
    assert "".join(delta.text for delta in run(llm, [answer], hidden)[0]) == "x"
    assert "".join(delta.text for delta in run(llm, [answer], shown)[0]) == "<|im_start|>x<|im_end|>"


def test_k09_06_ids_beyond_the_tokenizer_decode_to_nothing(llm):
    answer = [500, *spelled(llm, "ok"), 511]
    [deltas] = run(llm, [answer], SamplingParams(max_tokens=4, ignore_eos=True))
    assert "".join(delta.text for delta in deltas) == "ok"


def test_each_sample_of_a_prompt_has_its_own_text(llm):
    answers = [spelled(llm, "one"), spelled(llm, "two STOP"), spelled(llm, "three")]
    [deltas] = run(llm, answers, SamplingParams(n=3, max_tokens=5, stop="STOP", ignore_eos=True), prompts=[[5]])
    texts = ["".join(delta.text for delta in deltas if delta.index == index) for index in range(3)]
    assert texts[0].startswith("one")
    assert texts[1] == "two S"[:5]
    assert texts[2] == "three"
