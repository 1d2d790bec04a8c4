"""How fast this machine reads memory: the bound of a single stream's speed."""

import time
from typing import Any

import torch

from octavo.runner.arena import Arena

SIZE = 512 * 2**20
SECONDS = 1.0


def read_bandwidth(threads: int, *, size: int = SIZE, seconds: float = SECONDS) -> dict[str, Any]:
    """GB/s (10**9) of summing `size` bytes of memory as the engine takes it (huge pages where the machine gives them).

    Every byte is written first: untouched pages all map to one page of zeros, and reading that measures a cache.
    Sets torch's thread count, and puts it back.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        memory = Arena(1, size).bytes.view(torch.float32)
        memory.fill_(1.0)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            begin = time.perf_counter()
            memory.sum()
            times.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)
    times.sort()
    return {
        "bytes": memory.nbytes,
        "threads": threads,
        "gb_s_median": memory.nbytes / times[len(times) // 2] / 1e9,
        "gb_s_best": memory.nbytes / times[0] / 1e9,
    }
