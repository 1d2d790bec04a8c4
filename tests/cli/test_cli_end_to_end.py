"""The real library under the real command: a small random model in a folder, greedy, through every subcommand."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.cli.main import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a config and a tokenizer of bytes; its weights are random (`--load-format dummy`)."""
    folder = tmp_path_factory.mktemp("small-model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "tokenizer_class": "GPT2Tokenizer"}))
    return str(folder)


def engine(*more: str) -> list[str]:
    return ["--load-format", "dummy", "--threads", "1", "--num-blocks", "64", "--max-num-batched-tokens", "256", *more]


GREEDY = ["--temperature", "0", "--ignore-eos"]


def answers(capsys: pytest.CaptureFixture[str], *argv: str) -> list[list[int]]:
    assert main(["generate", *argv, "--json"]) == 0
    return [json.loads(line)["outputs"][0]["token_ids"] for line in capsys.readouterr().out.splitlines()]


def pool_now(report: str) -> tuple[int, int, int]:
    """(free, cached, leased) blocks of a memory report."""
    found = re.search(r"now      (\d+) free, (\d+) cached, (\d+) leased", report)
    assert found is not None
    free, cached, leased = map(int, found.groups())
    return free, cached, leased


def test_generate(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["-p", "first", "-p", "a second, longer prompt than the first"]
    assert main(["generate", model, *prompts, *engine(), *GREEDY, "--max-tokens", "8", "--json"]) == 0
    out, err = capsys.readouterr()
    outputs = [json.loads(line) for line in out.splitlines()]
    assert [output["prompt"] for output in outputs] == [prompts[1], prompts[3]]
    assert all(len(output["outputs"][0]["token_ids"]) == 8 for output in outputs)
    assert "64 blocks of 16 tokens" in err and "num_blocks=64" in err
    assert pool_now(err) == (60, 4, 0)  # 12 and 45 tokens stay cached (the last one of each answer is never written)
    assert re.search(r"prefixes   0.0% of 43 prompt tokens read from memory; 0 blocks shared at peak", err)


def test_the_same_tokens_whatever_the_memory(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    request = [model, "-p", "x" * 40, "-p", "y" * 90, "--max-tokens", "24", *GREEDY]
    expected = answers(capsys, *request, *engine())
    assert answers(capsys, *request, *engine("--block-size", "32")) == expected
    assert answers(capsys, *request, *engine("--kv-layout", "reserved", "--reserve", "oracle")) == expected
    assert answers(capsys, *request, *engine("--batching", "static", "--num-blocks", "8")) == expected


def test_a_refused_request_says_the_numbers(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model, "-p", "x", *engine(), "--max-tokens", "5000"]) == 1
    err = capsys.readouterr().err
    assert "max_tokens=5000" in err and "max_model_len is 4096" in err and "Traceback" not in err


def test_chat(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["hello", "/stats", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["chat", model, "--system", "be brief", *engine(), *GREEDY, "--max-tokens", "8"]) == 0
    assert "blocks_total             64" in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", ["run", "layouts", "blocks"])
def test_bench(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, benchmark: str) -> None:
    requests = [{"prompt": list(range(2, 2 + length)), "max_tokens": length} for length in (5, 20, 60)]
    (tmp_path / "w.json").write_text(json.dumps({"name": "w", "kind": "batch", "desc": "", "reps": [{"requests": requests}]}))
    argv = ["bench", benchmark, str(tmp_path / "w.json"), "--model", model, "--json", str(tmp_path / "out"), "--max-model-len", "256"]
    assert main([*argv, *engine()]) == 0
    records = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(records) == {"run": 1, "layouts": 6, "blocks": 4}[benchmark]
    for record in records:
        assert record["median"]["out_tokens"] == 85 and record.get("same", True) is True
        assert sum(record["median"]["pool"]["shares"].values()) == pytest.approx(1.0)
    assert len({record["memory_plan"]["kv_bytes"] for record in records}) == 1
    assert "{'" not in capsys.readouterr().out


def test_ctrl_c_in_a_real_process(model: str) -> None:
    """Streams into a pseudo-terminal; a signal after the first byte ends it with 130, its memory given back."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "octavo.cli.main", "generate", model, "-p", "x", *engine("--num-blocks", "512")]
    with subprocess.Popen([*command, *GREEDY, "--max-tokens", "4000"], stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert os.read(reader, 1)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                os.read(reader, 65536)
            except OSError:
                break
        assert process.stderr is not None
        err = process.stderr.read().decode()
    os.close(reader)
    assert process.returncode == 130
    free, cached, leased = pool_now(err)
    assert (free + cached, leased) == (512, 0) and cached >= 1 and "Traceback" not in err


def test_prompts_that_begin_alike_are_read_from_memory(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["-p", "x" * 64 + "a", "-p", "x" * 64 + "b"]
    argv = ["generate", model, *prompts, *GREEDY, "--max-tokens", "4", *engine("--max-num-seqs", "1")]
    assert main(argv) == 0
    assert "prefixes   49.2% of 130 prompt tokens read from memory" in capsys.readouterr().err
    assert main([*argv, "--no-enable-prefix-caching"]) == 0
    err = capsys.readouterr().err
    assert "prefixes   0.0% of 130 prompt tokens" in err and pool_now(err) == (64, 0, 0)
    assert main([*argv, "--cache-quotas", "default=32", "--cache-quotas", "other=0", "--prefix-index", "radix"]) == 0
    assert pool_now(capsys.readouterr().err) == (62, 2, 0)


def test_the_doctor_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["kernels"])[-1] == "reference" and report["memory"]["available"] > 0
    assert main(["doctor", "--quick"]) == 0
    assert "huge pages" in capsys.readouterr().out
