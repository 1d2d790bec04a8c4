"""Which kernels carry a program out: by the engine's setting, and by what this installation and machine have."""

import torch

from octavo.core.errors import ConfigError
from octavo.kernels.availability import native_kernels
from octavo.kernels.executor import Executor
from octavo.kernels.native import NativeExecutor, available_paths
from octavo.kernels.native_sampling import NativeSamplingOps
from octavo.kernels.program import Program
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.kernels.reference_sampling import ReferenceSamplingOps
from octavo.kernels.sampling_ops import SamplingOps
from octavo.kernels.sizes import matrix_bytes
from octavo.spec.memory import MemorySpec


def check_kernels(kernels: str) -> None:
    """Raise ConfigError for a path that this installation or machine doesn't have, before a model is read for it."""
    if not _reference(kernels) and kernels != "auto" and kernels not in available_paths():
        raise ConfigError(f"kernels={kernels!r} isn't one of this machine's: {', '.join(('auto', 'reference', *available_paths()))}")


def make_executor(
    kernels: str, program: Program, spec: MemorySpec, arena: torch.Tensor, *, max_tokens: int, max_logit_rows: int, threads: int
) -> Executor:
    """kernels: "reference", the name of an instruction path, or "auto": the best path, or (with a notice) the reference without any.

    Raises ConfigError for a path that isn't here, and for a model that the compiled kernels can't take.
    """
    sizes = {"max_tokens": max_tokens, "max_logit_rows": max_logit_rows, "threads": threads}
    if _reference(kernels):
        return ReferenceExecutor(program, spec, arena, **sizes)
    try:
        return NativeExecutor(program, spec, arena, **sizes, path=_path(kernels))
    except ConfigError as error:
        raise ConfigError(f"{error} (kernels={kernels!r}; kernels='reference' takes every model)") from error


def matrix_bytes_for(kernels: str, program: Program) -> int:
    """Bytes that `make_executor` will take for the program's matrices."""
    return matrix_bytes(program, packed=not _reference(kernels))


def make_sampling_ops(kernels: str, threads: int) -> SamplingOps:
    """The sampler's operations of the same instruction path as `make_executor`'s kernels."""
    return ReferenceSamplingOps() if _reference(kernels) else NativeSamplingOps(threads, _path(kernels))


def _path(kernels: str) -> str | None:
    return None if kernels == "auto" else kernels


def _reference(kernels: str) -> bool:
    return kernels == "reference" or (kernels == "auto" and native_kernels().module is None)
