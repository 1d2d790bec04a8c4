"""The scripts of bench/: how peers are compared."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "bench"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_ratios_say_how_much_better_the_first_is() -> None:
    compare = script("compare").compare
    rows = compare({"ours": [{"v": 12.0}, {"v": 20.0}, {"v": 11.0}], "theirs": [{"v": 6.0}], "broken": []}, "v")
    assert [(row["peer"], row["median"], row.get("ratio")) for row in rows] == [
        ("ours", 12.0, 1.0),
        ("theirs", 6.0, 2.0),
        ("broken", None, None),
    ]
    (_, slower) = compare({"ours": [{"wall_s": 2.0}], "theirs": [{"wall_s": 3.0}]}, "wall_s")
    assert slower["ratio"] == 1.5
    (_, slower) = compare({"ours": [{"out_tok_s": 3.0}], "theirs": [{"out_tok_s": 2.0}]}, "out_tok_s")
    assert slower["ratio"] == 1.5


def test_figures_are_found_among_other_lines() -> None:
    figures = script("compare").figures
    output = 'loading\n{"workload": "W1", "median": {"a": 1}}\n{"workload": "W2", "error": "no"}\n'
    assert figures(output, "W1") == {"a": 1}
    with pytest.raises(ValueError, match="no line about W2"):
        figures(output, "W2")


def test_rounds_run_the_peers_in_turns(tmp_path: Path) -> None:
    code = (
        "import json, sys; name, value, log = sys.argv[1:4];"
        "open(log, 'a').write(value + ' ');"
        "print(json.dumps({'workload': name, 'median': {'out_tok_s': float(value)}}))"
    )
    log = tmp_path / "log"
    peers = [
        {"name": name, "command": [sys.executable, "-c", code, "{name}", value, str(log)]} for name, value in (("a", "4"), ("b", "2"))
    ]
    peers.append({"name": "broken", "command": [sys.executable, "-c", "raise SystemExit(3)"]})
    (tmp_path / "peers.json").write_text(json.dumps({"peers": peers, "workloads": {"W": "out_tok_s"}}))
    command = [
        sys.executable,
        str(SCRIPTS / "compare.py"),
        str(tmp_path / "peers.json"),
        "--workloads",
        str(tmp_path),
        "--rounds",
        "2",
    ]
    done = subprocess.run([*command, "--json", str(tmp_path / "out")], check=True, capture_output=True, text=True)
    assert log.read_text() == "4 2 4 2 "
    assert "a is x as good" in done.stdout and "2.00" in done.stdout and "broken gave nothing" in done.stderr
    assert json.loads((tmp_path / "out").read_text())["runs"]["W"]["b"] == [{"out_tok_s": 2.0}] * 2


def test_an_import_is_timed_in_a_fresh_process() -> None:
    startup = script("startup")
    assert startup.import_seconds("time.sleep(0.05)") >= 0.05
    row = startup.measure("x", iter([9.0, 3.0, 1.0, 2.0]).__next__, 3)
    assert row == {"what": "x", "median": 2.0, "fastest": 1.0, "slowest": 3.0}
