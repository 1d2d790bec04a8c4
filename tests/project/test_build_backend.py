"""The build backend: a compiler that fails costs the compiled kernels, not the installation."""

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from project_files import ROOT


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The backend, in an empty project folder, as an installer runs it."""
    (tmp_path / "octavo" / "kernels").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "build_backend"))
    return importlib.import_module("octavo_build")


def test_a_good_build_leaves_no_report(backend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.ERROR_FILE.write_text("an older failure")
    calls = []
    monkeypatch.setattr(backend.skbuild, "build_wheel", lambda folder, settings: calls.append(settings) or "octavo.whl")
    assert backend.build_wheel("out", {"a": "b"}) == "octavo.whl"
    assert calls == [{"a": "b"}]
    assert not backend.ERROR_FILE.exists()


@pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
def test_a_failed_build_is_done_again_without_cmake_and_tells_why(backend, hook: str, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    calls = []

    def build(folder: str, settings: dict[str, str]) -> str:
        calls.append(settings)
        if len(calls) == 1:
            os.write(2, b"kernel.cpp:7: error: no such instruction\n")  # a child's output: past sys.stderr
            raise SystemExit(1)
        assert "no such instruction" in backend.ERROR_FILE.read_text()  # the wheel is packed after the report is written
        return "octavo-py3-none-any.whl"

    monkeypatch.setattr(backend.skbuild, hook, build)
    assert getattr(backend, hook)("out") == "octavo-py3-none-any.whl"
    assert calls == [{}, {"wheel.cmake": "false"}]
    assert "no such instruction" in capfd.readouterr().out


def test_a_fault_of_the_package_itself_is_raised(backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: str, settings: dict[str, str]) -> str:
        raise ValueError("pyproject.toml: no version")

    monkeypatch.setattr(backend.skbuild, "build_wheel", build)
    with pytest.raises(ValueError, match="no version"):
        backend.build_wheel("out")


@pytest.mark.soak
def test_a_machine_without_a_compiler_gets_a_package_that_says_so(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    environment = {**os.environ, "CC": "no-such-cc", "CXX": "no-such-c++"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    (wheel,) = tmp_path.glob("octavo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [member for member in archive.namelist() if member.endswith(".so")]
        archive.extractall(tmp_path / "installed")
    program = "from octavo.kernels.availability import native_kernels; print(native_kernels().reason)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path / "installed", capture_output=True, text=True, check=True
    )
    assert "no-such-c++" in found.stdout
    assert "no-such-c++" in found.stderr  # the notice
