"""`octavo chat`: history, commands, and Ctrl-C, over a library that computes nothing."""

import io
import os
import signal
from collections.abc import Callable

import pytest
from fake_llm import FakeLLM, greedy

from octavo.cli.chat import Chat
from octavo.cli.main import main


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """An `input` that gives these lines, raises these exceptions, and then is at its end."""
    waiting = list(lines)

    def ask(prompt: str) -> str:
        line = waiting.pop(0) if waiting else EOFError
        if isinstance(line, str):
            return line
        raise line

    return ask


def talk(llm: FakeLLM, *lines: str | type[BaseException], system: str | None = None) -> tuple[Chat, str]:
    out = io.StringIO()
    chat = Chat(llm, greedy(3), system=system, ask=typed(*lines), out=out)
    chat.loop()
    return chat, out.getvalue()


def test_an_answer_becomes_history() -> None:
    llm = FakeLLM()
    chat, out = talk(llm, "hello", "", "again", system="be brief")
    assert out.startswith("abc\nabc\n")
    assert [message["content"] for message in llm.tokenizer.last] == ["be brief", "hello", "abc", "again"]
    assert [message["role"] for message in chat.history] == ["user", "assistant", "user", "assistant"]


def test_commands() -> None:
    llm = FakeLLM()
    chat, out = talk(llm, "hello", "/stats", "/what", "/help", "/system now", "x", "/exit", "never")
    assert "0.0% of 0 prompt tokens read from memory; 0 blocks cached, 0 shared" in out
    assert "blocks_total             8" in out and "/what is not a command." in out and out.count("/clear ") == 2
    assert chat.system == "now" and [message["content"] for message in chat.history] == ["x", "abc"]
    chat, _ = talk(llm, "hello", "/clear")
    assert chat.history == []


def test_ctrl_c_ends_the_answer_only() -> None:
    llm = FakeLLM()
    llm.engine.on_step = lambda: llm.engine.steps == 1 and os.kill(os.getpid(), signal.SIGINT)
    chat, out = talk(llm, "hello", KeyboardInterrupt, "again")
    assert "ab ...\n" in out and llm.engine.aborted == ["r0"]
    assert [message["content"] for message in chat.history] == ["hello", "ab", "again", "abc"]


def test_a_refused_message_leaves_no_trace() -> None:
    chat, out = talk(FakeLLM(), "x" * 2000)
    assert "2000 tokens" in out and "/clear" in out and chat.history == []


def test_the_command(fake_library: type[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("builtins.input", typed("hello"))
    assert main(["chat", "fake", "--temperature", "0", "--block-size", "32"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("abcd\n") and "KV cache" in err  # the length is the model's, which is 4 here
    assert fake_library.instances[0].config.block_size == 32 and fake_library.instances[0].closed
