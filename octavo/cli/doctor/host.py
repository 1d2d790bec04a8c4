"""The machine as Linux describes it: processor, instruction sets, memory, huge pages, OpenMP runtimes.  No torch."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from octavo.spec.host import usable_cpus

# What the kernel paths need, as /proc/cpuinfo names it.
PATH_FLAGS = {
    "avx512_bf16": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx2": ("avx2", "fma", "f16c"),
    "portable": (),
}
OTHER_FLAGS = ("avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "avx512_fp16")
_OPENMP = re.compile(r"lib(g|i)?omp[^/]*\.so[^/]*$")


@dataclass(frozen=True, slots=True)
class Processor:
    """name: as the machine calls it.  cpus: in the machine.  usable: that this process may use.  flags: of the first one."""

    name: str
    cpus: int
    usable: int
    flags: frozenset[str]


def read_processor(root: Path = Path("/")) -> Processor:
    """Read /proc/cpuinfo under `root`."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = frozenset(value.split())
                break
    except OSError:
        flags = frozenset()
    return Processor(name, os.cpu_count() or 1, usable_cpus(root), flags)


def missing_flags(path: str, flags: frozenset[str]) -> list[str]:
    """What the processor lacks for one kernel path."""
    return [flag for flag in PATH_FLAGS[path] if flag not in flags]


def openmp_runtimes(maps: str) -> list[str]:
    """Files of the OpenMP runtimes in the text of a /proc/<pid>/maps, each once.  More than one spin against each other."""
    files = (line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6)
    return list(dict.fromkeys(file for file in files if _OPENMP.search(file)))


def read_openmp_runtimes() -> list[str]:
    """Those that this process has mapped."""
    try:
        return openmp_runtimes(Path("/proc/self/maps").read_text())
    except OSError:
        return []


def huge_pages(root: Path = Path("/")) -> str:
    """The transparent-huge-page mode in force ("always", "madvise", "never"), or "unknown"."""
    try:
        text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else "unknown"
