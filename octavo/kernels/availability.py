"""Which kernels this installation has: the compiled module, or the reason why there is none."""

import importlib
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

logger = logging.getLogger(__name__)

BUILD_ERROR = Path(__file__).with_name("build_error.txt")


@dataclass(frozen=True, slots=True)
class Availability:
    """module: `octavo.kernels._native`, or None.  reason: empty with a module, else what the compiler or the loader said."""

    module: ModuleType | None
    reason: str = ""


@cache
def native_kernels() -> Availability:
    """The compiled kernels, or why there are none.  Never raises; the first call without them logs one warning with the reason."""
    try:
        return Availability(importlib.import_module("octavo.kernels._native"))
    except ImportError as error:
        reason = _reason(error)
    logger.warning(
        "Octavo runs on its reference kernels, many times slower than the compiled ones, which this installation lacks. "
        "To have them, install a C++17 compiler (Debian: apt install g++) and reinstall octavo. The cause:\n%s",
        reason,
    )
    return Availability(None, reason)


def _reason(error: ImportError) -> str:
    """A recorded build failure, except where a module was built since and fails to load: then the loader's own words."""
    if isinstance(error, ModuleNotFoundError) and error.name == "octavo.kernels._native":
        if BUILD_ERROR.is_file():
            return BUILD_ERROR.read_text(encoding="utf-8").strip()
        return f"{error}: the sources were never compiled here (`make setup` or `pip install .` does that)"
    return str(error)


def main() -> int:
    """Print which kernels are installed.  Returns 0 with compiled kernels, 1 without."""
    found = native_kernels()
    if found.module is not None:
        print(f"compiled kernels: {found.module.__file__}")
    return 0 if found.module is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
