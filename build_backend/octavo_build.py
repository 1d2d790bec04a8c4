"""The build backend of Octavo: scikit-build-core's, except that a compiler that fails doesn't fail the installation.

The first attempt compiles `csrc/`. Where that fails (no compiler, an old one, no CMake) the package is built again without compiled
kernels, and the end of the failed attempt's output travels with it as `octavo/kernels/build_error.txt`, so that Octavo can say at run
time why it is on the reference kernels. Whatever fails without CMake too is a fault of the package and is raised.

`prepare_metadata_for_build_*` is left out on purpose: the wheel's tags aren't known before the compiler has been tried.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scikit_build_core import build as skbuild
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

ERROR_FILE = Path("octavo/kernels/build_error.txt")
TAIL_LINES = 40

Settings = Mapping[str, Any] | None
Hook = Callable[..., str]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517: writes a wheel into `wheel_directory` and returns its name; with compiled kernels where they can be built."""
    return _build(skbuild.build_wheel, wheel_directory, config_settings)


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 660: as `build_wheel`, for an installation that reads the Python files from this folder."""
    return _build(skbuild.build_editable, wheel_directory, config_settings)


def _build(hook: Hook, wheel_directory: str, config_settings: Settings) -> str:
    ERROR_FILE.unlink(missing_ok=True)
    settings = dict(config_settings or {})
    with tempfile.TemporaryFile() as log:
        try:
            with _output_into(log.fileno()):
                return hook(wheel_directory, settings)
        except (Exception, SystemExit) as error:
            reason = f"{_tail(log)}\n{type(error).__name__}: {error}".strip()
        finally:
            _replay(log)
    print(f"*** No compiled kernels: the build failed. Octavo will run on its reference kernels, slowly.\n{reason}", flush=True)
    ERROR_FILE.write_text(reason + "\n", encoding="utf-8")
    return hook(wheel_directory, {**settings, "wheel.cmake": "false"})


@contextmanager
def _output_into(target: int) -> Iterator[None]:
    """Send this process's and its children's output to a descriptor: the compiler is a child, so `sys.stdout` is not enough."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    try:
        for descriptor, _ in saved:
            os.dup2(target, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in saved:
            os.dup2(copy, descriptor)
            os.close(copy)


def _tail(log: Any) -> str:
    log.seek(0)
    return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:])


def _replay(log: Any) -> None:
    log.seek(0)
    sys.stdout.write(log.read().decode("utf-8", "replace"))
    sys.stdout.flush()
