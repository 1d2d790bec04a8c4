"""Whose memory a request may read: tenant, salt and template on their way from a caller to the engine; and what is refused before."""

import asyncio
import io

import pytest
import tqdm
from engine_models import TEMPLATE, VOCAB, byte_tokenizer, start, tiny_llama

from octavo import AsyncLLM, SamplingParams
from octavo import llm as front
from octavo.core.errors import InvalidRequestError
from octavo.engine.inputs import MAX_NAMESPACE_CHARS
from octavo.engine.messages import HEADER, Add, pack, unpack_for_engine
from octavo.text.chat_template import template_digest
from octavo.text.tokenizer import Tokenizer

SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
HELLO = [{"role": "user", "content": "Hi"}]
OTHER = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def llm():
    with start() as llm:
        yield llm


@pytest.fixture
def queued(llm, monkeypatch):
    """Every request that reaches the engine."""
    seen = []
    add = llm.engine.add_request
    monkeypatch.setattr(llm.engine, "add_request", lambda request: (seen.append(request), add(request))[1])
    return seen


def namespaces(requests):
    return [(request.tenant, request.cache_salt) for request in requests]


def crossed(request):
    """What the engine process reads of it."""
    return unpack_for_engine(pack(Add(request))[HEADER.size :])


def test_one_tenant_for_all_one_for_each_and_none(llm, queued):
    prompts = [[5, 6], [7]]
    llm.generate(prompts, SHORT, use_tqdm=False)
    llm.generate(prompts, SHORT, use_tqdm=False, tenant="a", cache_salt="s")
    llm.generate(prompts, SHORT, use_tqdm=False, tenant=["a", "b"], cache_salt=("", "t"))
    llm.chat([HELLO, HELLO], SHORT, use_tqdm=False, tenant=["a", "b"], cache_salt="s")
    assert namespaces(queued) == [("default", "")] * 2 + [("a", "s")] * 2 + [("a", ""), ("b", "t"), ("a", "s"), ("b", "s")]


@pytest.mark.parametrize("name", ["tenant", "cache_salt"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a", 3], r"prompt 1: {}=3 must be text"),
        (["a", None], r"prompt 1: {}=None must be text"),
        (["a", "x" * (MAX_NAMESPACE_CHARS + 1)], r"prompt 1: {} has 513 characters, more than 512; send a shorter one"),
        (["a", "ab\ud800"], r"prompt 1: {}='ab\\ud800' has half a surrogate pair at character 2"),
        (["a"], r"{} has 1 entries for 2 prompts"),
        (7, r"{} must be of str, one for all or one for each prompt, not 7"),
        (None, r"{} must be of str"),
        (b"ab", r"{} must be of str"),
        ({"a": 1}, r"{} must be of str"),
    ],
)
def test_a_wrong_tenant_or_salt_is_refused_and_nothing_is_queued(llm, queued, name, value, message):
    for ask, given in ((llm.generate, [[5], [6]]), (llm.chat, [HELLO, HELLO])):
        with pytest.raises(InvalidRequestError, match=message.format(name)):
            ask(given, SHORT, **{name: value})
    assert not queued


def test_the_longest_names_and_any_characters_are_taken(llm, queued):
    longest, odd = "\U0001f91d" * MAX_NAMESPACE_CHARS, "a\0b/../\u202e'"
    llm.generate([[5]], SHORT, use_tqdm=False, tenant=longest, cache_salt=odd)
    assert namespaces(queued) == [(longest, odd)]
    assert crossed(queued[0]) == Add(queued[0])


def test_a_template_that_came_with_the_messages_is_known_by_its_digest(llm, queued):
    llm.generate([[5]], SHORT, use_tqdm=False)
    llm.chat(HELLO, SHORT, use_tqdm=False)
    llm.chat([HELLO, HELLO], SHORT, use_tqdm=False, chat_template=OTHER)
    llm.chat(HELLO, SHORT, use_tqdm=False, chat_template=TEMPLATE)
    own = template_digest(llm.tokenizer.chat_template)
    assert [request.chat_template for request in queued] == [None, None, *[template_digest(OTHER)] * 2, own]
    assert llm.tokenizer.decode(queued[2].prompt_token_ids) == "user: Hi\n"
    for request in queued:
        assert crossed(request) == Add(request)


def test_the_asynchronous_front_takes_them_too(monkeypatch):
    async def main():
        llm = AsyncLLM(str(tiny_llama()), dtype="float32", threads=1, num_blocks=64)
        seen = []
        stream = llm._client.stream
        monkeypatch.setattr(llm._client, "stream", lambda request: (seen.append(request), stream(request))[1])
        async with llm:
            async for _ in llm.generate([5], SHORT, tenant="a", cache_salt="s"):
                pass
            async for _ in llm.generate([5], SHORT):
                pass
            for wrong in ({"tenant": "x" * 513}, {"tenant": ["a"]}, {"cache_salt": 3}, {"cache_salt": "\udfff"}):
                with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
                    async for _ in llm.generate([5], SHORT, **wrong):
                        pass
        return seen

    assert namespaces(asyncio.run(main())) == [("a", "s"), ("default", "")]


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        (5, {}, "messages must be a list of messages or of conversations, not int"),
        (HELLO[0], {}, "messages must be a list .* not dict"),
        ("Hi", {}, "messages must be a list .* not str"),
        (["Hi"], {}, "prompt 0: a conversation is a list of messages, not 'Hi'"),
        ([HELLO, None], {}, "prompt 1: a conversation is a list of messages, not None"),
        ([HELLO, HELLO[0]], {}, "prompt 1: a conversation is a list of messages, not {"),
        ([*HELLO, "Hi"], {}, r"prompt 0: messages\[1\] is 'Hi'; each must be a mapping"),
        ([{"role": "user"}], {}, r"messages\[0\] of role 'user' has no content; give it 'content'"),
        ([*HELLO, {"role": "assistant", "content": None, "name": "x"}], {}, r"messages\[1\] of role 'assistant' has no content"),
        (HELLO, {"chat_template": 7}, "chat_template must be the Jinja source of a template, not int"),
        (HELLO, {"chat_template": "{% if %}"}, r"chat_template: line 1 is no valid Jinja.*came with the messages"),
        (HELLO, {"chat_template": "{{ messages + 1 }}"}, "template can't render these messages"),
        (HELLO, {"chat_template_kwargs": {1: 2}}, "chat_template_kwargs must be a mapping from names"),
        (HELLO, {"chat_template_kwargs": "x"}, "chat_template_kwargs must be a mapping from names"),
        (HELLO, {"chat_template_kwargs": {"self": 1, "tools": []}}, "chat_template_kwargs can't hold self, tools"),
        (HELLO, {"tools": 3}, "tools must be a list of mappings, not int"),
    ],
)
def test_chat_says_which_part_is_wrong(llm, queued, messages, options, message):
    with pytest.raises(InvalidRequestError, match=message):
        llm.chat(messages, SHORT, **options)
    assert not queued


def test_a_fault_of_the_tokenizers_is_not_taken_for_the_callers(llm, monkeypatch):
    def broken(*_args, **_options):
        raise TypeError("a fault inside")

    monkeypatch.setattr(llm.tokenizer, "encode_chat", broken)
    with pytest.raises(TypeError, match="a fault inside"):
        llm.chat(HELLO, SHORT)


def test_content_may_be_absent_beside_what_the_template_reads_instead():
    tokenizer = Tokenizer(byte_tokenizer(), chat_template="{{ messages[0].tool_calls[0] }}")
    for message in ({"role": "assistant", "tool_calls": ["f"]}, {"role": "assistant", "content": None, "tool_calls": ["f"]}):
        assert tokenizer.render_chat([message]) == "f"
    assert (
        Tokenizer(byte_tokenizer(), chat_template="<{{ messages[0].content }}>").render_chat([{"role": "user", "content": ""}]) == "<>"
    )


@pytest.mark.parametrize(
    ("prompts", "index", "message"),
    [
        ([5, "a"], 0, "token 1 of the prompt is 'a', which is not a whole number of type int; ids are 0 to 511"),
        ([5, [6]], 0, r"token 1 of the prompt is \[6\], .* several prompts are a list of texts or of lists"),
        ([5, 1.0], 0, r"token 1 of the prompt is 1.0, .*tolist"),
        ([[5], [6, None]], 1, "token 1 of the prompt is None"),
        ([[5], 6], 1, r"the prompt must be text or a list of token ids, not 6 \(int\); a list of prompts holds texts or lists"),
        ([b"ab"], 0, r"not b'ab' \(bytes\)"),
        (["x", {"a"}], 1, r"not {'a'} \(set\)"),
        ([[5], object], 1, r"\(type\)"),
        ([["x" * 5000]], 0, r"token 0 of the prompt is 'x+\.\.\., which"),
        ([[5, VOCAB]], 0, f"token 1 of the prompt is {VOCAB}; this model's ids are 0 to {VOCAB - 1}"),
    ],
)
def test_a_wrong_element_is_named_with_the_remedy(llm, queued, prompts, index, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        llm.generate(prompts, SHORT)
    assert caught.value.index == index
    assert len(str(caught.value)) < 400
    assert not queued


@pytest.mark.parametrize("wrong", [None, 5, b"ab", ["a"], [1, 2]])
def test_only_text_is_encoded(wrong):
    with pytest.raises(InvalidRequestError, match=f"only text can be split into tokens, not {type(wrong).__name__}"):
        Tokenizer(byte_tokenizer()).encode(wrong)


@pytest.mark.parametrize(("terminal", "asked", "drawn"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_bar_is_drawn_on_a_terminal_only(llm, monkeypatch, terminal, asked, drawn):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(front, "tqdm", lambda **options: tqdm.tqdm(**options | {"delay": 0, "mininterval": 0}))
    llm.generate([[5], [6]], SHORT, use_tqdm=asked)
    assert ("requests" in stream.getvalue()) == drawn
