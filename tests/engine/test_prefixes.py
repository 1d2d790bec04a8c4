"""What an operator says of prefixes: publish, pin, forget, through the library and through the engine process.  Bits never change."""

import asyncio
import time

import pytest
from engine_models import start, tiny_llama

from octavo import AsyncLLM, SamplingParams
from octavo.core.errors import CapacityError, ConfigError, InvalidRequestError, OctavoError

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=10, logprobs=1, ignore_eos=True)
PREFIX = [(13 * i) % 500 + 4 for i in range(50)]  # three blocks of 16 and two tokens
TAIL = [7, 8, 9]
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)


def other(seed, length=64):
    """A prompt that begins like no other."""
    return [seed % 500, *((17 * i + seed) % 500 for i in range(length - 1))]


def told(output):
    return [(sample.token_ids, sample.text, sample.logprobs, sample.finish_reason) for sample in output.outputs]


@pytest.fixture(scope="module")
def cold():
    """What the prompt that reads the prefix gives where nothing is ever kept."""
    with start(enable_prefix_caching=False) as llm:
        return told(llm.generate([[*PREFIX, *TAIL]], PARAMS, use_tqdm=False)[0])


def ask(llm, prompt=(*PREFIX, *TAIL), **options):
    [output] = llm.generate([list(prompt)], PARAMS, use_tqdm=False, **options)
    llm.check()
    return output


def enqueue(llm, prompt, params=PARAMS, **options):
    [request] = llm.inputs.requests([prompt], [params], [options])
    llm.engine.add_request(request)
    return request.request_id


def rest(llm, request_id):
    """(tokens, text, logprobs, finish reason) of a queued request, all steps to its end."""
    tokens, text, logprobs, reason = [], "", [], None
    while llm.engine.has_work:
        for delta in llm.engine.step():
            for sample in delta.outputs if delta.request_id == request_id else ():
                tokens += sample.token_ids
                text += sample.text
                logprobs += sample.logprobs or ()
                reason = sample.finish_reason or reason
        llm.check()
    return [(tuple(tokens), text, tuple(logprobs), reason)]


class Raises:
    """A runner that carries nothing out."""

    def __init__(self, error):
        self.error = error

    def execute(self, plan):
        raise self.error


@pytest.mark.parametrize("prefix_index", ["hash", "radix"])
def test_a_publication_is_read_by_those_it_lists_in_whole_blocks(cold, prefix_index):
    with start(prefix_index=prefix_index) as llm:
        assert llm.publish_prefix(PREFIX, name="rules", tenants=["a", "b"]) == 48
        for tenant, salt in (("a", ""), ("b", "salted")):
            output = ask(llm, tenant=tenant, cache_salt=salt)
            assert (output.cache.num_published, output.num_cached_tokens) == (48, 48)
            assert told(output) == cold
        unlisted = ask(llm, tenant="c")
        assert (unlisted.cache.num_published, unlisted.num_cached_tokens, unlisted.cache.miss) == (0, 0, "no match")
        assert told(unlisted) == cold
        assert llm.stats().blocks_pinned == 3


@pytest.mark.parametrize("tenants", [None, "all"])
def test_a_publication_for_all_and_a_text_as_prefix(tenants):
    with start() as llm:
        text = "x" * 32 + "y"
        assert llm.publish_prefix(text, name="text", tenants=tenants) == 32
        assert ask(llm, llm.tokenizer.encode(text + "z"), tenant="whoever").cache.num_published == 32


def test_a_publication_that_is_withdrawn_lets_its_reader_go_on(cold):
    with start() as llm:
        llm.publish_prefix(PREFIX, name="rules")
        reader = enqueue(llm, [*PREFIX, *TAIL], tenant="a")
        llm.engine.step()
        held = llm.stats().blocks_leased
        assert llm.unpublish_prefix("rules") is True
        assert llm.unpublish_prefix("rules") is False
        assert llm.stats().blocks_leased == held
        assert llm.stats().blocks_pinned == 0
        tokens, text, logprobs, reason = rest(llm, reader)[0]
        # The first token came with the step before.
        assert (tokens, logprobs, reason) == (cold[0][0][1:], cold[0][2][1:], "length")
        assert cold[0][1].endswith(text)
        newcomer = ask(llm, tenant="b")
        assert newcomer.num_cached_tokens == 0
        assert told(newcomer) == cold
        assert llm.publish_prefix(PREFIX, name="rules") == 48  # the name is free


def test_a_publication_that_cannot_be_computed_is_none(cold):
    with start() as llm:
        runner = llm.engine.runner
        llm.engine.runner = Raises(MemoryError("no workspace of 1234 bytes"))
        with pytest.raises(OctavoError, match=r"could not be computed: .*1234 bytes"):
            llm.publish_prefix(PREFIX, name="rules")
        with pytest.raises(OctavoError, match=r"could not be computed: .*1234 bytes"):
            llm.pin_prefix(PREFIX, name="rules")
        llm.engine.runner = runner
        assert not llm.pins()
        assert llm.unpublish_prefix("rules") is False
        assert told(ask(llm)) == cold


def test_a_publication_whose_request_is_refused_is_none():
    with start() as llm:
        taken = enqueue(llm, other(1))
        request = llm.inputs.request(PREFIX, PARAMS, request_id=taken, published="rules")
        with pytest.raises(InvalidRequestError, match="is in use by a request that has not ended"):
            llm.engine.publish(request, None)
        assert llm.unpublish_prefix("rules") is False
        assert rest(llm, taken)[0][3] == "length"  # its name twin is not touched


def test_an_interrupted_publication_is_none():
    with start() as llm:
        runner = llm.engine.runner
        llm.engine.runner = Raises(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            llm.publish_prefix(PREFIX, name="rules")
        llm.engine.runner = runner
        assert llm.unpublish_prefix("rules") is False
        assert not llm.engine.has_work
        assert llm.publish_prefix(PREFIX, name="rules") == 48


def test_a_pin_survives_pressure_that_evicts_its_neighbours(cold):
    with start(num_blocks=24) as llm:
        assert llm.pin_prefix(PREFIX, name="mine", tenant="a") == 48
        assert [(pin.name, pin.num_tokens, pin.seconds_left) for pin in llm.pins()] == [("mine", 48, None)]
        ask(llm, other(1))
        for seed in range(2, 14):
            ask(llm, other(seed))
        assert llm.stats().evictions_capacity > 0
        assert ask(llm, other(1)).num_cached_tokens == 0  # what nobody pinned is gone
        output = ask(llm, tenant="a")
        assert output.num_cached_tokens == 48
        assert told(output) == cold
        assert ask(llm, tenant="b").num_cached_tokens == 0


def test_no_request_fails_or_yields_for_what_is_pinned_or_published(cold):
    with start(num_blocks=24) as llm:
        llm.pin_prefix(PREFIX, name="mine")
        llm.publish_prefix(other(5), name="rules")
        [output] = llm.generate([other(9, 300)], SamplingParams(max_tokens=85, ignore_eos=True, seed=1), use_tqdm=False)
        assert output.outputs[0].finish_reason == "length"
        assert llm.stats().preemptions == 0
        assert [pin.num_tokens for pin in llm.pins()] == [0]
        assert told(ask(llm)) == cold


def test_a_pin_ends_by_its_time_or_by_its_name():
    with start(num_blocks=24) as llm:
        llm.pin_prefix(PREFIX, name="brief", ttl=0.2)
        llm.pin_prefix(other(3), name="lasting")
        brief, lasting = llm.pins()
        assert brief.name == "brief"
        assert 0 < brief.seconds_left <= 0.2
        assert (lasting.name, lasting.num_tokens, lasting.seconds_left) == ("lasting", 64, None)
        time.sleep(0.25)
        assert [pin.name for pin in llm.pins()] == ["lasting"]
        assert llm.unpin_prefix("brief") is False
        assert llm.unpin_prefix("lasting") is True
        assert llm.stats().blocks_pinned == 0
        for seed in range(20, 32):
            ask(llm, other(seed))
        assert ask(llm).num_cached_tokens == ask(llm, other(3)).num_cached_tokens == 0


def test_the_cap_is_told_with_its_numbers():
    with start(num_blocks=20, pin_share=0.3) as llm:
        llm.pin_prefix(PREFIX, name="first")
        words = (
            r"the pin 'second' would keep 4 blocks of 16 tokens; 3 are pinned and 0 published already, and together they may cover "
            r"6 of 20 \(pin_share=0.3\)"
        )
        with pytest.raises(CapacityError, match=words):
            llm.pin_prefix(other(2), name="second")
        with pytest.raises(CapacityError, match=r"the publication 'third' would keep 4 blocks .* 3 are pinned"):
            llm.publish_prefix(other(3), name="third")
        assert [pin.name for pin in llm.pins()] == ["first"]
        assert llm.pin_prefix(other(2), name="first") == 64  # in its place
        llm.unpin_prefix("first")
        assert llm.publish_prefix(other(3), name="third") == 64


def test_a_pin_covers_what_the_quota_leaves():
    with start(cache_quotas={"a": 32}) as llm:
        assert llm.pin_prefix(PREFIX, name="mine", tenant="a") <= 32
        assert llm.pin_prefix(PREFIX, name="theirs", tenant="b") == 48
        assert llm.publish_prefix(PREFIX, name="rules", tenants=["a"]) == 48  # nobody's quota pays
        assert ask(llm, tenant="a").cache.num_published == 48


def test_forgetting_while_requests_run(cold):
    with start() as llm:
        ask(llm)
        llm.pin_prefix(PREFIX, name="mine")
        running = enqueue(llm, [*PREFIX, *TAIL])
        llm.engine.step()
        before = llm.stats()
        freed = llm.reset_prefix_cache()
        llm.check()
        after = llm.stats()
        assert freed == before.blocks_cached == after.blocks_free - before.blocks_free
        assert (after.blocks_cached, after.blocks_leased, after.blocks_pinned) == (0, before.blocks_leased, 0)
        assert llm.pins() == []
        tokens, _, logprobs, reason = rest(llm, running)[0]
        assert (tokens, logprobs, reason) == (cold[0][0][1:], cold[0][2][1:], "length")
        assert llm.stats().blocks_cached == 0  # nothing of what ran then is found
        again = ask(llm)
        assert again.num_cached_tokens == 0
        assert told(again) == cold


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.publish_prefix(PREFIX, name=""), "name has 0 characters; it must have 1 to 512"),
        (lambda llm: llm.publish_prefix(PREFIX, name="x" * 513), "name has 513 characters"),
        (lambda llm: llm.publish_prefix(PREFIX, name=7), "name=7 must be text"),
        (lambda llm: llm.publish_prefix(PREFIX, name="a\ud800"), "half a surrogate pair"),
        (lambda llm: llm.unpublish_prefix(""), "name has 0 characters"),
        (lambda llm: llm.unpin_prefix(None), "name=None must be text"),
        (lambda llm: llm.publish_prefix(PREFIX[:15], name="x"), "15 tokens don't fill a block of 16"),
        (lambda llm: llm.publish_prefix([], name="x"), "no token ids"),
        (lambda llm: llm.publish_prefix([5] * 3000, name="x"), "max_model_len is 2048"),
        (lambda llm: llm.publish_prefix(PREFIX, name="x", tenants="a"), "tenants='a' must be a list"),
        (lambda llm: llm.publish_prefix(PREFIX, name="x", tenants=[]), "tenants is empty"),
        (lambda llm: llm.publish_prefix(PREFIX, name="x", tenants=["a", 3]), "tenant=3 must be text"),
        (lambda llm: llm.publish_prefix(PREFIX, name="x", tenants=["a" * 513]), "tenant has 513 characters"),
        (lambda llm: llm.pin_prefix(PREFIX, name=""), "name has 0 characters"),
        (lambda llm: llm.pin_prefix(PREFIX, name="x", ttl=0), "ttl=0 would end the pin at once"),
        (lambda llm: llm.pin_prefix(PREFIX, name="x", ttl=float("nan")), "ttl=nan must be a number of seconds"),
        (lambda llm: llm.pin_prefix(PREFIX, name="x", ttl="1"), "ttl='1' must be a number of seconds"),
        (lambda llm: llm.pin_prefix(PREFIX, name="x", tenant=3), "tenant=3 must be text"),
    ],
)
def test_what_is_wrong_is_refused_by_name(shared, call, words):
    with pytest.raises(InvalidRequestError, match=words):
        call(shared)
    assert not shared.engine.has_work
    assert shared.stats().blocks_pinned == 0
    assert shared.unpublish_prefix("x") is False


@pytest.fixture(scope="module")
def shared():
    with start() as llm:
        yield llm


def test_a_name_is_taken_once(shared):
    shared.publish_prefix(PREFIX, name="taken")
    with pytest.raises(InvalidRequestError, match="'taken' is published already; unpublish it first"):
        shared.publish_prefix(other(2), name="taken")
    assert ask(shared).cache.num_published == 48  # the first one stands
    assert shared.unpublish_prefix("taken") is True


@pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"kv_layout": "reserved", "max_model_len": 128}], ids=str)
def test_without_a_memory_of_prefixes_it_says_so(settings):
    with start(**settings) as llm:
        for call in (llm.publish_prefix, llm.pin_prefix):
            with pytest.raises(ConfigError, match="set enable_prefix_caching=True and kv_layout='paged'"):
                call(PREFIX, name="x")
        assert llm.pins() == []
        assert llm.reset_prefix_cache() == 0
        assert not llm.engine.has_work


async def whole(stream):
    """(output as `told` tells it, CacheReport) of a stream."""
    tokens, text, logprobs, reason, cache = [], "", [], None, None
    async for delta in stream:
        for sample in delta.outputs:
            tokens += sample.token_ids
            text += sample.text
            logprobs += sample.logprobs or ()
            reason = sample.finish_reason
        cache = cache or delta.cache
    return [(tuple(tokens), text, tuple(logprobs), reason)], cache


def in_process(test, **settings):
    async def main():
        async with AsyncLLM(str(tiny_llama()), **{"dtype": "float32", "threads": 1, "num_blocks": 256, **settings}) as llm:
            await test(llm)
            await llm.check()

    asyncio.run(main())


def test_publications_through_the_engine_process(cold):
    async def test(llm):
        prompt = [*PREFIX, *TAIL]
        assert await llm.publish_prefix(PREFIX, name="rules", tenants=("a", "b")) == 48
        answers = await asyncio.gather(*(whole(llm.generate(prompt, PARAMS, tenant=tenant)) for tenant in "abc"))
        assert [answer for answer, _ in answers] == [cold] * 3
        assert [cache.num_published for _, cache in answers] == [48, 48, 0]
        with pytest.raises(InvalidRequestError, match="'rules' is published already"):
            await llm.publish_prefix(other(2), name="rules")
        with pytest.raises(InvalidRequestError, match="15 tokens don't fill a block of 16"):
            await llm.publish_prefix(PREFIX[:15], name="x")
        with pytest.raises(InvalidRequestError, match="name has 0 characters"):
            await llm.publish_prefix(PREFIX, name="")
        reader = llm.generate(PREFIX, LONG, tenant="b")
        await anext(reader)
        assert await llm.unpublish_prefix("rules") is True
        assert await llm.unpublish_prefix("rules") is False
        assert not (await anext(reader)).finished
        await reader.aclose()
        _, cache = await whole(llm.generate([*PREFIX, 11], PARAMS, tenant="new"))
        assert cache.num_tokens == 0

    in_process(test)


def test_a_publication_that_is_cancelled_is_none():
    async def test(llm):
        for _ in range(10):
            task = asyncio.create_task(llm.publish_prefix(other(4, 1500), name="rules"))
            await asyncio.sleep(0.005)
            if task.done():  # it was faster
                assert await llm.unpublish_prefix("rules")
                continue
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await llm.unpublish_prefix("rules") is False
        assert await llm.publish_prefix(PREFIX, name="rules") == 48

    in_process(test)


def test_pins_through_the_engine_process(cold):
    async def test(llm):
        assert await llm.pin_prefix(PREFIX, name="mine", tenant="a", ttl=60.0) == 48
        [pin] = await llm.pins()
        assert (pin.name, pin.num_tokens) == ("mine", 48)
        assert 0 < pin.seconds_left <= 60
        for seed in range(2, 14):
            await whole(llm.generate(other(seed), PARAMS))
        answer, cache = await whole(llm.generate([*PREFIX, *TAIL], PARAMS, tenant="a"))
        assert (answer, cache.num_tokens) == (cold, 48)
        with pytest.raises(CapacityError, match=r"3 are pinned and 0 published already, .* 7 of 24 \(pin_share=0.3\)"):
            await llm.pin_prefix(other(2, 100), name="second")
        with pytest.raises(InvalidRequestError, match="ttl=-1"):
            await llm.pin_prefix(PREFIX, name="x", ttl=-1)
        assert await llm.unpin_prefix("mine") is True
        assert await llm.unpin_prefix("mine") is False
        assert await llm.pins() == []

    in_process(test, num_blocks=24, pin_share=0.3)


def test_forgetting_through_the_engine_process(cold):
    async def test(llm):
        prompt = [*PREFIX, *TAIL]
        assert (await whole(llm.generate(prompt, PARAMS)))[0] == cold
        running = asyncio.create_task(whole(llm.generate(other(3), LONG)))
        await asyncio.sleep(0.05)
        assert await llm.reset_prefix_cache() == 4
        answer, cache = await whole(llm.generate(prompt, PARAMS))
        assert (answer, cache.num_tokens) == (cold, 0)
        assert len((await running)[0][0][0]) == 1500

    in_process(test)


def test_without_a_memory_of_prefixes_the_process_says_so():
    async def test(llm):
        with pytest.raises(ConfigError, match="enable_prefix_caching=True"):
            await llm.publish_prefix(PREFIX, name="x")
        with pytest.raises(ConfigError, match="enable_prefix_caching=True"):
            await llm.pin_prefix(PREFIX, name="x")

    in_process(test, enable_prefix_caching=False)
