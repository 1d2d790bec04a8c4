"""The compiled kernels are there: everything else that is tested would pass on the reference kernels too, and prove less."""

import importlib
import logging

import pytest

from octavo.kernels import availability


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch):
    """`availability` with nothing remembered, and nothing left behind."""
    availability.native_kernels.cache_clear()
    yield monkeypatch
    availability.native_kernels.cache_clear()


def test_compiled_kernels_are_loaded() -> None:
    found = availability.native_kernels()
    assert found.module is not None, f"no compiled kernels: {found.reason}"
    assert found.reason == ""


def unavailable(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def refuse(module: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)


def test_without_them_the_compiler_is_quoted_once(fresh: pytest.MonkeyPatch, tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    report = tmp_path / "build_error.txt"
    report.write_text("g++: command not found\n")
    fresh.setattr(availability, "BUILD_ERROR", report)
    unavailable(fresh, ModuleNotFoundError("No module named 'octavo.kernels._native'", name="octavo.kernels._native"))
    with caplog.at_level(logging.WARNING):
        assert availability.native_kernels() == availability.Availability(None, "g++: command not found")
        availability.native_kernels()
    assert [record.getMessage().count("g++: command not found") for record in caplog.records] == [1]


def test_a_module_that_does_not_load_gives_the_loaders_words(fresh: pytest.MonkeyPatch, tmp_path) -> None:
    report = tmp_path / "build_error.txt"
    report.write_text("an older failure\n")
    fresh.setattr(availability, "BUILD_ERROR", report)
    unavailable(fresh, ImportError("libgomp.so.1: cannot open shared object file"))
    assert "libgomp" in availability.native_kernels().reason


def test_never_compiled_says_so(fresh: pytest.MonkeyPatch, tmp_path) -> None:
    fresh.setattr(availability, "BUILD_ERROR", tmp_path / "absent.txt")
    unavailable(fresh, ModuleNotFoundError("No module named 'octavo.kernels._native'", name="octavo.kernels._native"))
    assert "never compiled" in availability.native_kernels().reason
