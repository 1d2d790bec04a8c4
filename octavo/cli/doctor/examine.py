"""Looking, measuring, and telling: the whole of `octavo doctor`."""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from octavo import __version__
from octavo.cli.doctor.bandwidth import read_bandwidth
from octavo.cli.doctor.host import OTHER_FLAGS, huge_pages, read_openmp_runtimes, read_processor
from octavo.cli.doctor.kernels import explain_paths, findings
from octavo.cli.doctor.products import DEFAULT_SHAPES, Shape, examine_products, shapes_of
from octavo.cli.doctor.tell import tell
from octavo.kernels.availability import native_kernels
from octavo.kernels.choice import make_executor
from octavo.kernels.executor import Executor
from octavo.kernels.native import available_paths
from octavo.kernels.program import Program
from octavo.spec.host import read_host_memory, usable_cpus
from octavo.spec.memory import MemorySpec

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "huggingface-hub", "jinja2", "msgspec")


def main(arguments: argparse.Namespace) -> int:
    """Print the report.  Returns 1 when a promise of Octavo's doesn't hold on this machine, else 0."""
    report = examine(model=arguments.model, threads=arguments.threads, quick=arguments.quick)
    print(json.dumps(report) if arguments.json else tell(report))
    return int(any(level == "fault" for level, _ in report["findings"]))


def examine(*, model: str | None = None, threads: int | None = None, quick: bool = False) -> dict[str, Any]:
    """Everything as plain values.  quick: without what takes time, that is bandwidth and products."""
    threads = threads or usable_cpus()
    processor, kernels, runnable = read_processor(), native_kernels(), available_paths()
    report: dict[str, Any] = {
        "versions": versions(),
        "processor": {**asdict(processor), "flags": None, "also": [flag for flag in OTHER_FLAGS if flag in processor.flags]},
        "kernels": explain_paths([str(kernels.module)] if kernels.module else [], runnable, processor.flags, kernels.reason),
        "memory": asdict(read_host_memory()),
        "huge_pages": huge_pages(),
        "threads": {"kernels": threads, "torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "openmp": read_openmp_runtimes(),
    }
    load = os.getloadavg()[0]
    differing: list[str] = []
    if not quick:
        torch.set_num_threads(threads)  # torch's products are compared with ours
        _note("reading memory")
        report["bandwidth"] = read_bandwidth(threads)
        dtype = torch.bfloat16 if runnable[:1] == ["avx512_bf16"] else torch.float32
        shapes = DEFAULT_SHAPES if model is None else _model_shapes(model)
        report["dtype"] = str(dtype).removeprefix("torch.")
        report["products"] = examine_products(shapes, dtype, partial(_executor, threads), note=_note)
        differing = [str(Shape(found["n"], found["k"], found["gated"])) for found in report["products"] if found["differ"]]
    report["findings"] = findings(
        runnable=runnable,
        reason=kernels.reason,
        runtimes=report["openmp"],
        huge_pages=report["huge_pages"],
        differing=differing,
        load=load,
        cpus=processor.usable,
    )
    return report


def versions() -> dict[str, str]:
    """Of Octavo, Python, the kernel, and the packages that decide what comes out."""
    system = {"octavo": __version__, "python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    return {**system, **{package: _version(package) for package in PACKAGES}}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _executor(threads: int, program: Program, spec: MemorySpec, rows: int) -> Executor:
    arena = torch.zeros(spec.block_bytes, dtype=torch.uint8)
    return make_executor("auto", program, spec, arena, max_tokens=rows, max_logit_rows=rows, threads=threads)


def _model_shapes(model: str) -> list[Shape]:
    from octavo.models.load import load_model

    return shapes_of(load_model(model).program)


def _note(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)
