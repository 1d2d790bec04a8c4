"""`LLM` as its users meet it: inputs, parameters, outputs, refusals."""

import pytest
from engine_models import EOS, VOCAB, start

from octavo import LLM, SamplingParams
from octavo.core.errors import CapacityError, ConfigError, InvalidRequestError, OctavoError, UnsupportedModelError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, seed=0)


@pytest.fixture(scope="module")
def llm():
    with start() as llm:
        yield llm


@pytest.mark.parametrize("prompt", ["Hello", [9, 8, 7], (9, 8, 7), {"prompt": "Hello"}, {"prompt_token_ids": [9, 8, 7]}])
def test_every_form_of_a_prompt(llm, prompt):
    alone = llm.generate(prompt, GREEDY, use_tqdm=False)
    listed = llm.generate([prompt, prompt], GREEDY, use_tqdm=False)
    assert len(alone) == 1
    assert len(listed) == 2
    assert alone[0].outputs == listed[0].outputs != ()
    ids = llm.tokenizer.encode("Hello") if "Hello" in str(prompt) else [9, 8, 7]
    assert alone[0].prompt_token_ids == tuple(ids)
    assert len(alone[0].outputs[0].token_ids) == 8
    assert alone[0].outputs[0].finish_reason == "length"


def test_results_come_in_input_order_with_one_params_each(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 5)]
    outputs = llm.generate([[4], [5], [6]], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]
    assert [output.prompt_token_ids for output in outputs] == [(4,), (5,), (6,)]
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    "bad",
    ["", [], {}, {"prompt": 3}, {"text": "a"}, [-1], [0, -5, 3], [VOCAB], [2**31], [2**63], [1.5], [True], [[1], 2], None, 7, b"ab"],
)
def test_a_bad_prompt_is_refused_by_its_index_and_nothing_is_queued(llm, bad):
    if bad == "":  # this tokenizer adds no token that begins a text
        assert llm.tokenizer.encode("") == []
    with pytest.raises(InvalidRequestError, match="prompt 1") as caught:
        llm.generate([[5, 6], bad], GREEDY)
    assert caught.value.index == 1
    assert not llm.engine.has_work
    assert llm.generate([[VOCAB - 1]], GREEDY, use_tqdm=False)[0].finished


def test_params_must_match_the_prompts(llm):
    with pytest.raises(InvalidRequestError, match="2 entries for 3 prompts"):
        llm.generate([[4], [5], [6]], [GREEDY, GREEDY])
    with pytest.raises(InvalidRequestError, match=r"stop_token_ids names token id 512; this model's ids are 0 to 511"):
        llm.generate([[4]], SamplingParams(stop_token_ids=[VOCAB]))


def test_max_tokens_is_kept_or_refused_when_given_and_capped_when_not():
    limit = 64
    with start(max_model_len=limit) as llm:

        def count(length, **options):
            output = llm.generate([[5] * length], SamplingParams(temperature=0, ignore_eos=True, **options), use_tqdm=False)[0]
            return len(output.outputs[0].token_ids)

        for prompt_and_output in (limit - 1, limit):
            assert count(prompt_and_output - 10, max_tokens=10) == 10
        with pytest.raises(InvalidRequestError, match=r"has 55 tokens and max_tokens=10 .* 65: max_model_len is 64"):
            count(limit + 1 - 10, max_tokens=10)
        assert count(limit - 3) == 3
        assert count(10, max_tokens=None) == limit - 10
        assert count(limit - 1, max_tokens=1) == count(limit - 1) == 1
        for length in (limit, limit + 1):
            with pytest.raises(InvalidRequestError, match=f"has {length} tokens .* max_model_len is 64"):
                count(length)


def test_eos_and_stop_tokens_end_and_their_ids_stay(llm):
    ids = llm.generate([[7, 8]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    stop = ids[3]
    first = ids.index(stop)
    sample = llm.generate([[7, 8]], SamplingParams(temperature=0, stop_token_ids=[stop]), use_tqdm=False)[0].outputs[0]
    assert sample.token_ids == ids[: first + 1]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop)
    params = SamplingParams(temperature=0, stop_token_ids=[stop], min_tokens=first + 2, max_tokens=20)
    later = llm.generate([[7, 8]], params, use_tqdm=False)[0].outputs[0]
    assert stop not in later.token_ids[: first + 1]
    biased = SamplingParams(temperature=0, logit_bias={EOS: 100.0})
    sample = llm.generate([[7, 8]], biased, use_tqdm=False)[0].outputs[0]
    assert (sample.token_ids, sample.finish_reason, sample.stop_reason, sample.text) == ((EOS,), "stop", None, "")


def test_samples_of_one_prompt_differ_and_come_again(llm):
    params = SamplingParams(n=4, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    first, again = (llm.generate([[9, 9]], params, use_tqdm=False)[0].outputs for _ in range(2))
    assert [sample.index for sample in first] == [0, 1, 2, 3]
    assert first == again
    assert len({sample.token_ids for sample in first}) == 4


def test_a_drawn_seed_is_returned_and_gives_the_same_tokens(llm):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    one, two = (llm.generate([[9, 9]], params, use_tqdm=False)[0].outputs[0] for _ in range(2))
    assert one.seed != two.seed
    seeded = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=one.seed)
    assert llm.generate([[9, 9]], seeded, use_tqdm=False)[0].outputs[0].token_ids == one.token_ids


def test_prompt_logprobs_score_every_prompt_token_however_it_is_chunked(llm):
    prompt = [(7 * i) % 500 for i in range(70)]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3, logprobs=0, ignore_eos=True)
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [entry.token_id for entry in output.prompt_logprobs[1:]] == prompt[1:]
    assert all(len(entry.top) == 3 and entry.rank >= 1 and entry.logprob <= 0 for entry in output.prompt_logprobs[1:])
    with start(max_num_batched_tokens=16) as small:
        assert small.generate([prompt], params, use_tqdm=False)[0].prompt_logprobs == output.prompt_logprobs
    assert output.outputs[0].logprobs is not None
    assert [entry.token_id for entry in output.outputs[0].logprobs] == list(output.outputs[0].token_ids)


def test_logprobs_are_the_models_own_before_masks(llm):
    plain = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    forced = SamplingParams(temperature=0.7, seed=1, max_tokens=1, logprobs=5, allowed_token_ids=[42])
    one, two = (llm.generate([[9, 9]], params, use_tqdm=False)[0].outputs[0].logprobs[0] for params in (plain, forced))
    assert one.top == two.top
    assert (two.token_id, one.rank) == (42, 1)
    assert two.logprob < one.logprob


def test_chat_renders_the_models_template(llm):
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    output = llm.chat(messages, GREEDY, use_tqdm=False)[0]
    ids = list(output.prompt_token_ids)
    assert ids == llm.tokenizer.encode_chat(messages)
    assert ids.count(llm.tokenizer.token_to_id("<|im_end|>")) == 1  # the user's own spelling of it is only text
    assert len(llm.chat([messages, messages], GREEDY, use_tqdm=False)) == 2
    with pytest.raises(InvalidRequestError):
        llm.chat([], GREEDY)


def test_a_short_pool_starts_with_one_notice_and_refuses_what_can_never_fit(caplog):
    with start(num_blocks=32) as llm:
        notices = [record.getMessage() for record in caplog.records if "fewer than max_model_len" in record.getMessage()]
        assert len(notices) == 1
        assert "512 tokens" in notices[0]
        with pytest.raises(InvalidRequestError, match=r"prompt has 900 tokens, and the KV cache holds 512"):
            llm.generate([[5] * 900], SamplingParams(max_tokens=8))
        with pytest.raises(InvalidRequestError, match="lower max_tokens to at most 213"):
            llm.generate([[5] * 300], SamplingParams(max_tokens=214))
        assert (
            len(llm.generate([[5] * 300], SamplingParams(max_tokens=213, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids)
            == 213
        )


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"block_size": 24}, ConfigError, "block_size=24"),
        ({"num_blocks": 0}, ConfigError, "num_blocks=0"),
        ({"num_blocks": 4, "kv_cache_memory_bytes": 10**6}, ConfigError, "give one"),
        ({"num_blocks": 2**40}, CapacityError, "set num_blocks to at most"),
        ({"kv_cache_memory_bytes": 100}, CapacityError, "no block"),
        ({"max_model_len": 10**6}, ConfigError, "max_model_len=1000000"),
        ({"dtype": "float16"}, ConfigError, "dtype='float16'"),
        ({"kernels": "sse2"}, ConfigError, "kernels='sse2'"),
        ({"threads": 1000}, ConfigError, "threads=1000, and this process may use"),
        ({"max_num_batched_tokens": 10**9}, CapacityError, "lower max_num_batched_tokens=1000000000"),
        ({"gpu_memory_utilization": 0.9}, ConfigError, "did you mean 'memory_utilization'"),
        ({"memory_utilization": "0.5"}, ConfigError, "must be a number"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_numbers(settings, error, words):
    with pytest.raises(error, match=words):
        start(**settings)


def test_a_closed_llm_says_so():
    llm = start()
    llm.close()
    llm.close()
    with pytest.raises(OctavoError, match="closed"):
        llm.generate([[4]], GREEDY)


def test_stats_count_what_was_done():
    with start() as llm:
        llm.generate([[5] * 20, [6] * 3], GREEDY, use_tqdm=False)
        stats = llm.stats()
        assert stats.tokens_computed == 20 + 3 + 2 * 7
        # 27 and 10 tokens are written: the last one of an answer never is.  They stay, in two blocks and one.
        assert (stats.blocks_total, stats.blocks_free, stats.blocks_cached, stats.blocks_leased) == (256, 253, 3, 0)
        assert (stats.preemptions, stats.tokens_cached, stats.prompt_tokens, stats.hit_rate) == (0, 0, 23, 0.0)
        assert stats.as_dict()["blocks_total"] == 256
        assert set(llm.engine.step_seconds()) >= {"schedule", "linear", "attention", "sampling", "commit", "text", "rest"}


@pytest.mark.parametrize("params", [7, "greedy", [7], {"n": 1}])
def test_params_of_another_kind_are_refused(llm, params):
    with pytest.raises(InvalidRequestError):
        llm.generate([[4]], params)


@pytest.mark.parametrize("priority", [1.5, "a", [0, "a"], True, 2**63])
def test_a_priority_of_another_kind_is_refused_and_nothing_is_queued(llm, priority):
    with pytest.raises(InvalidRequestError):
        llm.generate([[4], [5]], GREEDY, priority=priority)
    assert not llm.engine.has_work
    assert len(llm.generate([[4], [5]], GREEDY, priority=[2, 1], use_tqdm=False)) == 2


def test_bad_words_never_come(llm):
    plain = llm.generate([[7, 8]], GREEDY, use_tqdm=False)[0].outputs[0]
    word = next(token for token in plain.token_ids if 36 <= token < 120)  # one printable byte
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, bad_words=[llm.tokenizer.decode([word])])
    assert word not in llm.generate([[7, 8]], params, use_tqdm=False)[0].outputs[0].token_ids


def test_min_tokens_that_cannot_be_reached_is_refused(llm):
    with pytest.raises(InvalidRequestError, match="min_tokens=5000"):
        llm.generate([[4]], SamplingParams(min_tokens=5000, max_tokens=None))


def test_a_text_that_can_never_fit_is_refused_before_it_is_split(llm):
    with pytest.raises(InvalidRequestError, match="3000000 characters"):
        llm.generate("a" * 3_000_000, GREEDY)


@pytest.mark.parametrize("reserve", ["max", "pow2", "oracle"])
def test_a_reserved_pool_caps_and_refuses_by_its_own_measure(reserve):
    with start(kv_layout="reserved", reserve=reserve, num_blocks=24, max_model_len=256) as llm:
        open_ended = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        output = llm.generate([[4] * 10], open_ended, use_tqdm=False)[0].outputs[0]
        assert output.finish_reason == "length"
        assert 1 < len(output.token_ids) <= 246
        assert llm.stats().blocks_free == 24


def test_chat_names_the_conversation_that_is_wrong(llm):
    good = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequestError, match="prompt 1"):
        llm.chat([good, [{"role": "user", "content": 3}]], GREEDY)


def test_stats_and_check_may_be_asked_while_another_thread_generates(llm):
    import threading

    done = threading.Event()
    faults = []

    def ask():
        while not done.is_set():
            try:
                llm.stats()
                llm.check()
            except Exception as error:
                faults.append(error)
                return

    asker = threading.Thread(target=ask)
    asker.start()
    llm.generate([[5 + i] * 30 for i in range(20)], GREEDY, use_tqdm=False)
    done.set()
    asker.join()
    assert not faults


@pytest.mark.parametrize(
    "options",
    [
        {"stop": 5},
        {"stop_token_ids": 5},
        {"logit_bias": [1]},
        {"bad_words": 5},
        {"skip_special_tokens": "no"},
        {"ignore_eos": 3},
        {"include_stop_str_in_output": None},
    ],
)
def test_a_parameter_of_another_kind_is_refused_by_name(options):
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        SamplingParams(**options)


def test_one_bad_word_may_be_a_plain_string():
    assert SamplingParams(bad_words=" Paris").bad_words == (" Paris",)


def test_the_architecture_is_judged_before_the_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    with pytest.raises(UnsupportedModelError, match=r"bert|Bert"):
        LLM(tmp_path)


@pytest.mark.parametrize("conversations", [[None], [[{"role": "user", "content": "Hi"}], 5]])
def test_what_is_no_conversation_is_refused(llm, conversations):
    with pytest.raises(InvalidRequestError):
        llm.chat(conversations, GREEDY)
