"""What is looked at while a workload runs: the pool's shares, how many requests run, and the process's memory."""

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]
SHARES = ("useful", "reserved", "internal", "external", "free")
MIB = 2**20


class PoolWatch:
    """Call it after a step.  It looks at `stats()` at most every `every` seconds, so that looking costs next to nothing, and
    weighs what it saw by the time until the next look (shares of memory over time, as in SOSP 2023, PagedAttention, figure 2)."""

    def __init__(self, stats: Callable[[], Any], *, every: float = 0.02, clock: Clock = time.perf_counter) -> None:
        self._stats, self._every, self._clock = stats, every, clock
        self._next = self._last = clock()
        self._seconds = 0.0
        self._sums = dict.fromkeys((*SHARES, "running", "leased"), 0.0)
        self._seen: dict[str, float] = {}
        self.peak_running = 0
        self.peak_leased = 0
        self.peak_useful = 0.0  # of the leased blocks' tokens, when most were leased

    def __call__(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._add(now)
        stats = self._stats()
        self._seen = {share: getattr(stats, f"tokens_{share}") / (stats.blocks_total * stats.block_size) for share in SHARES}
        self._seen |= {"running": stats.running, "leased": stats.blocks_leased}
        self.peak_running = max(self.peak_running, stats.running)
        if stats.blocks_leased > self.peak_leased:
            self.peak_leased = stats.blocks_leased
            self.peak_useful = stats.tokens_useful / (stats.blocks_leased * stats.block_size)
        self._next = now + self._every

    def report(self) -> dict[str, Any]:
        """Means over time and peaks: requests that ran, blocks leased, and the shares of the pool, which sum to 1."""
        self._add(self._clock())
        mean = {name: total / self._seconds if self._seconds else 0.0 for name, total in self._sums.items()}
        return {
            "running_mean": mean["running"],
            "running_peak": self.peak_running,
            "blocks_leased_mean": mean["leased"],
            "blocks_leased_peak": self.peak_leased,
            "shares": {share: mean[share] for share in SHARES},
        }

    def _add(self, now: float) -> None:
        if self._seen:
            span = now - self._last
            self._seconds += span
            for name, value in self._seen.items():
                self._sums[name] += value * span
        self._last = now


class PeakMemory:
    """The most resident memory that this process and its descendants had together while the block ran, in MiB (Linux)."""

    def __init__(self, every: float = 0.5) -> None:
        self.peak_mib = 0.0
        self._every = every
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.peak_mib = max(self.peak_mib, resident_bytes(os.getpid()) / MIB)

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            self.peak_mib = max(self.peak_mib, resident_bytes(os.getpid()) / MIB)


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants, from /proc; without /proc, the largest that this process ever had."""
    try:
        entries = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parents = {entry: parent for entry in entries if (parent := _parent(entry)) is not None}
    family, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return sum(map(_resident, family))


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
