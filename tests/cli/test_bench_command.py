"""`octavo bench`: workload files, and the commands over a library that computes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM

from octavo.cli.bench.workload import Job, load_workload
from octavo.cli.main import main
from octavo.core.errors import InvalidRequestError

BATCH = {"requests": [{"prompt": [1, 2, 3], "max_tokens": 2}, {"prompt": [4], "max_tokens": 3}]}
FILES: dict[str, dict[str, Any]] = {
    "batch": {"name": "B", "kind": "batch", "desc": "two", "reps": [BATCH, BATCH]},
    "staged": {"name": "S", "kind": "staged", "desc": "two", "reps": [BATCH]},
    "session": {
        "name": "T",
        "kind": "session",
        "desc": "talk",
        "reps": [{"turns": [{"add": [1, 2], "max_tokens": 2}, {"add": [3], "max_tokens": 1}]}],
    },
    "parallel": {"name": "P", "kind": "parallel", "desc": "four", "reps": [{"prompt": [1, 2], "n": 4, "max_tokens": 3}]},
}


def save(folder: Path, content: Any) -> str:
    path = folder / "w.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_workloads(tmp_path: Path) -> None:
    batch = load_workload(save(tmp_path, FILES["batch"]))
    assert (batch.name, batch.kind, len(batch.reps)) == ("B", "batch", 2)
    assert batch.reps[0] == (Job((1, 2, 3), 2), Job((4,), 3)) and batch.longest == 5
    assert load_workload(save(tmp_path, FILES["session"])).longest == 6
    assert load_workload(save(tmp_path, FILES["parallel"])).reps == ((Job((1, 2), 3, 4),),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "can't be read"),
        ("[]", "is wrong"),
        ({"kind": "batch"}, "lacks the field 'reps'"),
        ({"kind": "storm", "reps": []}, "kind 'storm' is not one of batch, staged, session, parallel"),
        ({"kind": "batch", "reps": []}, "reps is empty"),
        ({"kind": "batch", "reps": [{"requests": []}]}, "reps is empty"),
        ({"kind": "batch", "reps": [{"requests": [{"prompt": [], "max_tokens": 1}]}]}, "isn't empty"),
        ({"kind": "batch", "reps": [{"requests": [{"prompt": "text", "max_tokens": 1}]}]}, "token ids"),
        ({"kind": "batch", "reps": [{"requests": [{"prompt": [1], "max_tokens": 0}]}]}, "max_tokens is 0"),
        ({"kind": "batch", "reps": [{"requests": [{"prompt": [1]}]}]}, "lacks the field 'max_tokens'"),
    ],
)
def test_a_wrong_workload_says_what(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_workload(save(tmp_path, content))
    assert message in str(caught.value) and "w.json" in str(caught.value)


@pytest.mark.parametrize("kind", FILES)
def test_run_writes_a_table_and_json(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "out.jsonl"
    argv = ["bench", "run", save(tmp_path, FILES[kind]), "--model", "fake", "--json", str(out), "--parts", "--max-num-seqs", "9"]
    assert main(argv) == 0
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["workload"] == FILES[kind]["name"] and record["config"]["max_num_seqs"] == 9
    assert record["median"]["out_tok_s"] > 0 and record["median"]["rss_peak_mb"] > 1
    assert {"pool", "parts_s", "preemptions"} <= set(record["median"])
    text = capsys.readouterr().out
    assert "output tok/s" in text and "Share of the wall time" in text
    assert ("turn by turn" in text) == (kind == "session")


def test_reps_and_json_to_standard_output(fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "run", save(tmp_path, FILES["batch"]), "--reps", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["n_reps"] == 1


def test_layouts_run_every_variant_on_the_same_pool(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "layouts", save(tmp_path, FILES["batch"]), "--model", "fake", "--reps", "1"]) == 0
    seen = [(llm.config.kv_layout, llm.config.reserve, llm.config.batching) for llm in fake_library.instances]
    assert seen == [
        ("paged", "max", "continuous"),
        ("reserved", "oracle", "continuous"),
        ("reserved", "pow2", "continuous"),
        ("reserved", "max", "continuous"),
        ("paged", "max", "static"),
        ("reserved", "max", "static"),
    ]
    assert {llm.config.num_blocks for llm in fake_library.instances} == {256} and all(llm.closed for llm in fake_library.instances)
    text = capsys.readouterr().out
    assert text.count("| yes") == 6 and "NO" not in text


def test_layouts_show_it_when_tokens_differ(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = fake_library().engine.__class__.step

    def differing(self: Any) -> Any:
        outputs = step(self)
        if fake_library.instances[-1].config.batching == "static":
            self.running.clear()
            from dataclasses import replace

            outputs = [replace(output, finished=True) for output in outputs]
        return outputs

    monkeypatch.setattr("fake_llm.FakeEngine.step", differing)
    assert main(["bench", "layouts", save(tmp_path, FILES["batch"]), "--model", "fake", "--reps", "1"]) == 0
    assert capsys.readouterr().out.count("NO") == 2


def test_block_sizes_share_the_bytes_of_the_first(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "blocks", save(tmp_path, FILES["batch"]), "--model", "fake", "--num-blocks", "8"]) == 0
    configs = [llm.config for llm in fake_library.instances]
    assert [config.block_size for config in configs] == [16, 32, 64, 128]
    assert configs[0].num_blocks == 8 and {config.kv_cache_memory_bytes for config in configs[1:]} == {12800}


def test_figures_that_cannot_be_written_are_an_error(
    fake_library: type[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["bench", "run", save(tmp_path, FILES["batch"]), "--json", str(tmp_path / "none" / "out")]
    assert main(argv) == 1
    assert "can't be written" in capsys.readouterr().err
