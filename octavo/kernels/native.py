"""`NativeExecutor`: a program carried out by the compiled kernels, in one native call a step."""

import logging
from types import ModuleType
from typing import Any

import numpy as np
import torch

from octavo.core.errors import ConfigError, InvariantError
from octavo.kernels.availability import native_kernels
from octavo.kernels.executor import Batch
from octavo.kernels.native_binding import bind
from octavo.kernels.program import Program
from octavo.spec.memory import BLOCK_SIZES, MemorySpec

logger = logging.getLogger(__name__)

COMPUTE_DTYPES = (torch.float32, torch.bfloat16)
HEAD_DIMS = range(16, 257, 8)


def available_paths() -> list[str]:
    """Instruction paths that this build holds and this machine can run, best first; empty without compiled kernels."""
    module = native_kernels().module
    return [] if module is None else module.available_paths()


def openmp_libraries() -> list[str]:
    """Files of the OpenMP runtimes mapped into this process; more than one means thread pools that get in each other's way."""
    module = native_kernels().module
    return [] if module is None else module.openmp_libraries()


class NativeExecutor:
    """Implements `Executor`.  name: the instruction path in use.

    arena: uint8, contiguous, on the CPU, a whole number of blocks of `memory_spec`; written by `forward` and `copy_blocks`.
    max_tokens, max_logit_rows: the rows that the buffers hold; a larger batch is refused.
    threads: of the team, the calling thread included.  Only one thread may use an executor.
    path: an instruction path to force ("avx512_bf16", "avx512", "avx2", "portable"); None takes the best that the machine has.

    Weights are read and packed here, one matrix after the other, to the program's compute dtype.
    Raises ConfigError for what these kernels can't take (the reference executor can), InvariantError for a program that contradicts
    itself.  `forward`, `logits` and `copy_blocks` raise InvariantError for ids and counts outside their limits, before they write.
    """

    def __init__(
        self,
        program: Program,
        memory_spec: MemorySpec,
        arena: torch.Tensor,
        *,
        max_tokens: int,
        max_logit_rows: int,
        threads: int,
        path: str | None = None,
    ) -> None:
        module = _module()
        self.name = choose_path(module, path)
        if threads < 1:
            raise ConfigError(f"threads={threads} must be at least 1")
        _check_supported(program, memory_spec, arena)
        self._bound = bind(
            module,
            program,
            memory_spec,
            arena,
            max_tokens=max_tokens,
            max_logit_rows=max_logit_rows,
            threads=threads,
            path=self.name,
        )
        libraries = module.openmp_libraries()
        if len(libraries) > 1:
            logger.warning(
                "%d OpenMP runtimes are loaded; their threads slow each other down: %s", len(libraries), ", ".join(libraries)
            )

    def forward(self, batch: Batch) -> None:
        self._call(
            self._bound.native.forward,
            batch.token_ids,
            batch.q_start,
            batch.start,
            batch.write,
            batch.row,
            batch.tables,
            batch.contiguous,
        )

    def logits(self, rows: np.ndarray) -> torch.Tensor:
        self._call(self._bound.native.logits, rows)
        return self._bound.logits[: len(rows)]

    def copy_blocks(self, pairs: np.ndarray) -> None:
        self._call(self._bound.native.copy_blocks, pairs)

    def seconds(self) -> dict[str, float]:
        result: dict[str, float] = self._bound.native.seconds()
        return result

    def workspace_bytes(self) -> int:
        return self._bound.workspace_bytes

    def weight_bytes(self) -> int:
        return self._bound.weight_bytes

    @staticmethod
    def _call(function: Any, *args: Any) -> None:
        try:
            function(*args)
        except ValueError as error:
            raise InvariantError(f"the step was refused: {error}") from None


def _module() -> ModuleType:
    found = native_kernels()
    if found.module is None:
        raise ConfigError(f"this installation has no compiled kernels: {found.reason}")
    return found.module


def choose_path(module: ModuleType, path: str | None) -> str:
    """The name of an instruction path of `module`: that one, or the best for None.  Raises ConfigError for one that isn't here."""
    paths: list[str] = module.available_paths()
    if path is None:
        return paths[0]
    if path not in paths:
        raise ConfigError(f"the instruction path {path!r} isn't one that this machine can run; it has {', '.join(paths)}")
    return path


def _check_supported(program: Program, spec: MemorySpec, arena: torch.Tensor) -> None:
    """Raise for what the compiled kernels can't take."""
    if program.compute_dtype not in COMPUTE_DTYPES:
        raise ConfigError(
            f"the compiled kernels compute in float32 or bfloat16, not in {program.compute_dtype}; set dtype to one of them"
        )
    if spec.block_size not in BLOCK_SIZES:
        raise ConfigError(
            f"block_size={spec.block_size}: the compiled kernels take {', '.join(map(str, BLOCK_SIZES))}; set block_size to one"
        )
    for i, layer in enumerate(spec.layers):
        if layer.head_dim not in HEAD_DIMS:
            raise ConfigError(
                f"layer {i} has heads of {layer.head_dim} elements: the compiled kernels take multiples of 8 from {HEAD_DIMS[0]} to "
                f"{HEAD_DIMS[-1]}; use the reference kernels for this model"
            )
    if arena.dtype != torch.uint8 or not arena.is_contiguous() or arena.device.type != "cpu" or arena.numel() % spec.block_bytes:
        raise InvariantError(
            f"the arena must be contiguous bytes on the CPU, a multiple of {spec.block_bytes} (one block); "
            f"it is {arena.numel()} elements of {arena.dtype} on {arena.device}"
        )
