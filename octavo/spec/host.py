"""What this process may take of its machine: memory and CPUs, as the kernel and the control groups allow.  Linux; no torch."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes.  total: of the machine or, if smaller, the group's limit.  available: could be taken now without swapping.

    limited_by: "machine" or "control group", whichever leaves less.
    """

    total: int
    available: int
    limited_by: str


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read /proc and /sys under `root`.  The smaller of the machine's and every enclosing control group's room counts."""
    fields = _meminfo(root / "proc/meminfo")
    machine = HostMemory(fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0)), "machine")
    best = machine
    for limit, used, reclaimable in _groups(root):
        room = max(0, limit - used + reclaimable)
        if room < best.available:
            best = HostMemory(min(limit, machine.total), room, "control group")
    return best


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may keep busy: those it may run on, or fewer where a control group under `root` has a quota of time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = (_cpu_quota(folder, version) for folder, version in _group_folders(root, "cpu"))
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _cpu_quota(folder: Path, version: int) -> float | None:
    """CPUs' worth of time, or None without a limit."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / name).read_text().strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None


def _meminfo(path: Path) -> dict[str, int]:
    fields = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            fields[name] = int(rest.split()[0]) * 1024
    return fields


def _groups(root: Path) -> list[tuple[int, int, int]]:
    """(limit, used, reclaimable page cache) of each control group of this process that has a limit, innermost first."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    entries = (_group(folder, *names[version]) for folder, version in _group_folders(root, "memory"))
    return [entry for entry in entries if entry is not None]


def _group_folders(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """(folder, version 1 or 2) of each control group of this process that may limit `controller`, innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one tree
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group == base.parent:
                break
            yield group, version


def _group(folder: Path, limit_name: str, used_name: str, cache_name: str) -> tuple[int, int, int] | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        used = int((folder / used_name).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit() or int(limit) >= 2**60:  # "max", or version 1's word for no limit
        return None
    cache = 0
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == cache_name:
                cache = int(value)
    except (OSError, ValueError):
        cache = 0
    return int(limit), used, cache
