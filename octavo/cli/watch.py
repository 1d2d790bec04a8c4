"""What is looked at while a workload runs: the pool's shares, how many requests run, and the process's memory."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]
SHARES = ("useful", "reserved", "internal", "external", "free")
MIB = 2**20


class PoolWatch:
    """Call it after a step.  It looks at `stats()` at most every `every` seconds, so that looking costs next to nothing, and
    weighs what it saw by the time until the next look (shares of memory over time, as in SOSP 2023, PagedAttention, figure 2)."""

    def __init__(self, stats: Callable[[], Any], *, every: float = 0.005, clock: Clock = time.perf_counter) -> None:
        self._stats, self._every, self._clock = stats, every, clock
        self._next = self._last = clock()
        self._seconds = 0.0
        self._sums = dict.fromkeys((*SHARES, "running", "leased"), 0.0)
        self._seen: dict[str, float] = {}
        self.peak_running = 0
        self.peak_leased = 0
        self.peak_shared = 0
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
        self.peak_shared = max(self.peak_shared, stats.blocks_shared)
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
    """The most resident memory that this process had while the block ran, in MiB, as the kernel kept it.

    Where the kernel's mark can't be set back (it takes Linux), it is the most since the process began.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0

    def __enter__(self) -> "PeakMemory":
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # 5: the peak starts anew from what is resident (proc(5))
        return self

    def __exit__(self, *_: object) -> None:
        self.peak_mib = peak_resident_bytes() / MIB


def peak_resident_bytes() -> int:
    """The kernel's mark of this process's largest resident memory."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
