"""What a control group leaves of the machine, read from a made-up /proc and /sys."""

from pathlib import Path

import pytest

from octavo.spec.host import read_host_memory, usable_cpus

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("5000000 100000", 8), ("damaged", 8)],
)
def test_a_quota_of_time_bounds_the_cpus(tmp_path: Path, limit: str, cpus: int) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/pod/box", "sys/fs/cgroup/pod/box/cpu.max": limit})
    assert usable_cpus(tmp_path) == cpus


def test_the_tightest_enclosing_group_counts(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/pod/cpu.max": "300000 100000", "sys/fs/cgroup/pod/box/cpu.max": "max 100000"}
    assert usable_cpus(write(tmp_path, {"proc/self/cgroup": "0::/pod/box", **files})) == 3


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("250000", 3)])
def test_version_1(tmp_path: Path, quota: str, cpus: int) -> None:
    files = {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": quota, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000"}
    assert usable_cpus(write(tmp_path, {"proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box", **files})) == cpus


def test_without_control_groups_the_affinity_decides(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 8


@pytest.mark.parametrize("version", [1, 2])
def test_memory_that_a_group_leaves(tmp_path: Path, version: int) -> None:
    machine = {"proc/meminfo": f"MemTotal: {64 * 1024} kB\nMemAvailable: {32 * 1024} kB"}
    names = ("memory.max", "memory.current", "") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory/")
    groups = "0::/box" if version == 2 else "4:memory:/box"
    at = f"sys/fs/cgroup/{names[2]}box"
    stat = "inactive_file" if version == 2 else "total_inactive_file"
    limit = {f"{at}/{names[0]}": str(20 * MIB), f"{at}/{names[1]}": str(15 * MIB), f"{at}/memory.stat": f"{stat} {3 * MIB}"}
    found = read_host_memory(write(tmp_path, {**machine, "proc/self/cgroup": groups, **limit}))
    assert (found.total, found.available, found.limited_by) == (20 * MIB, 8 * MIB, "control group")
