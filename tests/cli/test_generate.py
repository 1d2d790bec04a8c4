"""`octavo generate` from the command line to its exit code, over a library that computes nothing."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from fake_llm import FakeLLM

from octavo.cli.main import main
from octavo.core.errors import InvalidRequestError


def test_one_prompt_prints_its_text_alone(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "-p", "hello", "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == "abc\n"
    assert "weights" in err and "num_blocks=8" in err  # the plan
    assert "at peak  1 leased" in err and "50.0% of their tokens useful" in err
    assert "now      8 free, 0 cached, 0 leased" in err
    assert "3 out in" in err
    assert fake_library.instances[0].closed


def test_quiet(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "-q", "-p", "hello"]) == 0
    assert capsys.readouterr().err == ""


def test_several_prompts_and_samples(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "-q", "-p", "x", "-p", "y", "--n", "2", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out == "[0] x\n(0) ab\n(1) ab\n\n[1] y\n(0) ab\n(1) ab\n\n"


def test_json_lines(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "é"}\n{"prompt_token_ids": [4, 5]}\n')
    assert main(["generate", "fake", "--json", "-f", str(tmp_path / "p.jsonl"), "--max-tokens", "1", "--seed", "5"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["index"], first["prompt"], second["index"], second["prompt_token_ids"]) == (0, "é", 1, [4, 5])
    sample = second["outputs"][0]
    assert (sample["text"], sample["token_ids"], sample["seed"], sample["finish_reason"]) == ("a", [1], 5, "length")


def test_chat_sends_messages(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "-q", "--chat", "--system", "be brief", "-p", "hello"]) == 0
    assert fake_library.instances[0].tokenizer.last == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]


@pytest.mark.parametrize("line", ['{"prompt_token_ids": [4, 5]}', '{"prompt": "x", "prompt_token_ids": [4]}', '{"prompt": 5}'])
def test_a_chat_needs_text_and_says_so_before_the_model_is_loaded(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "hello"}\n' + line + "\n")
    before = len(fake_library.instances)
    assert main(["generate", "fake", "-q", "--chat", "-f", str(tmp_path / "p.jsonl")]) == 1
    assert "p.jsonl, line 2: --chat sends messages" in capsys.readouterr().err
    assert len(fake_library.instances) == before


def test_a_conversation_that_the_template_refuses_is_named_by_its_index(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, conversation: list[dict[str, str]]) -> list[int]:
        if conversation[-1]["content"] == "y":
            raise InvalidRequestError("the model's chat template refuses these messages: no y")
        return [1]

    monkeypatch.setattr("fake_llm.FakeTokenizer.encode_chat", refuse)
    assert main(["generate", "fake", "-q", "--chat", "-p", "x", "-p", "y"]) == 1
    assert capsys.readouterr().err == "octavo: prompt 1: the model's chat template refuses these messages: no y\n"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["generate", "fake", "-p", "x", "--temperature", "-1"], 1, "temperature=-1"),
        (["generate", "fake", "-p", "x", "--memory-utilization", "3"], 1, "memory_utilization=3"),
        (["generate", "fake", "-p", "x" * 2000], 1, "prompt 0: the prompt has 2000 tokens"),
    ],
)
def test_an_error_is_its_message_alone(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], argv: list[str], code: int, message: str
) -> None:
    assert main([*argv, "-q"]) == code
    err = capsys.readouterr().err
    assert err.startswith("octavo: ") and message in err and "Traceback" not in err and err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["nothing"], ["generate"], ["generate", "m", "--no-such-flag"], ["bench"], ["bench", "run"]])
def test_a_wrong_command_line_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_failed_output_is_named_and_the_others_are_printed(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FakeLLM.__init__

    def failing(self: FakeLLM, *args: object, **more: object) -> None:
        first(self, *args, **more)  # type: ignore[arg-type]
        self.engine.fail = "r1"

    monkeypatch.setattr(FakeLLM, "__init__", failing)
    assert main(["generate", "fake", "-q", "-p", "x", "-p", "y", "--max-tokens", "2"]) == 1
    out, err = capsys.readouterr()
    assert "[0] x\nab\n" in out
    assert err == "octavo: prompt 1, sample 0: the step broke\n"


def test_ctrl_c_between_steps_releases_everything(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FakeLLM.__init__

    def interrupting(self: FakeLLM, *args: object, **more: object) -> None:
        first(self, *args, **more)  # type: ignore[arg-type]
        self.engine.on_step = lambda: self.engine.steps == 2 and os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(FakeLLM, "__init__", interrupting)
    before = signal.getsignal(signal.SIGINT)
    assert main(["generate", "fake", "-p", "hello", "--max-tokens", "50"]) == 130
    out, err = capsys.readouterr()
    llm = fake_library.instances[0]
    assert out == "abc\n" and llm.closed and llm.engine.aborted == ["r0"] and not llm.engine.running
    assert "now      8 free, 0 cached, 0 leased" in err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_gets_the_text_as_it_comes(fake_library: type[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        flushed: ClassVar[list[str]] = []

        def isatty(self) -> bool:
            return True

        def flush(self) -> None:
            self.flushed.append(self.getvalue())

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["generate", "fake", "-q", "-p", "hello", "--max-tokens", "3"]) == 0
    assert terminal.flushed[:3] == ["a", "ab", "abc"]
    assert terminal.getvalue() == "abc\n"


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from octavo.cli.main import build_parser; build_parser().format_help();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "from octavo.cli.main import main; import sys; sys.exit(main(['generate', '--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
