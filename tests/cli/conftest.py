"""The command line against a fake library: `octavo.llm` is replaced by a module whose `LLM` computes nothing."""

import sys
import types
from collections.abc import Iterator

import pytest
from fake_llm import FakeLLM


@pytest.fixture
def fake_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeLLM]]:
    module = types.ModuleType("octavo.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.llm", module)
    FakeLLM.instances.clear()
    yield FakeLLM
    FakeLLM.instances.clear()
