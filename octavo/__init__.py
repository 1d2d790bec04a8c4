"""Octavo: an LLM serving engine whose centre is the memory of attention.

`LLM`, `AsyncLLM` and what they take and give are found here and loaded at first use (PEP 562), so that `import octavo`, the planner
and `octavo --help` need neither torch nor its start-up time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.outputs import CacheReport as CacheReport
    from octavo.core.params import BeamSearchParams as BeamSearchParams
    from octavo.core.params import SamplingParams as SamplingParams
    from octavo.llm import LLM as LLM
    from octavo.llm import AsyncLLM as AsyncLLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "BeamSearchParams", "CacheReport", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.llm",
    "BeamSearchParams": "octavo.core.params",
    "CacheReport": "octavo.core.outputs",
    "SamplingParams": "octavo.core.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
