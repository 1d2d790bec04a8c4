"""How much memory this process may still take: what the kernel has to give, and what the control group allows.  Linux; no torch."""

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


def _meminfo(path: Path) -> dict[str, int]:
    fields = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            fields[name] = int(rest.split()[0]) * 1024
    return fields


def _groups(root: Path) -> list[tuple[int, int, int]]:
    """(limit, used, reclaimable page cache) of each control group of this process that has a limit, innermost first."""
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one tree
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group == base.parent:
                break
            if (entry := _group(group, *names)) is not None:
                found.append(entry)
    return found


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
