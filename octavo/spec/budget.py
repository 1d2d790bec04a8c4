"""`MemoryPlan`: what a running engine takes, part by part, and which setting changes each part."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import CapacityError
from octavo.spec.memory import MemorySpec

MIB = 2**20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes and counts of one engine.

    num_blocks x block_size = capacity_tokens, of which one sequence may use min(max_model_len, capacity_tokens).
    sized_by: which setting decided num_blocks.  available_bytes: what was free when the pool was sized.
    """

    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    bytes_per_token: int
    block_size: int
    num_blocks: int
    capacity_tokens: int
    max_model_len: int
    max_requests_at_max_len: float
    available_bytes: int
    sized_by: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            (
                f"weights     {self.weights_bytes / MIB:10,.1f} MiB   (dtype)",
                f"workspaces  {self.workspace_bytes / MIB:10,.1f} MiB   (max_num_batched_tokens, max_model_len)",
                f"KV cache    {self.kv_bytes / MIB:10,.1f} MiB   = {self.num_blocks:,} blocks of {self.block_size} tokens"
                f" = {self.capacity_tokens:,} tokens at {self.bytes_per_token:,} bytes",
                f"            {'':10}       = {self.max_requests_at_max_len:,.1f} requests of {self.max_model_len:,} tokens"
                f" (max_model_len); sized by {self.sized_by}",
            )
        )


def plan_memory(
    spec: MemorySpec,
    *,
    weights_bytes: int,
    workspace_bytes: int,
    available_bytes: int,
    max_model_len: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    memory_utilization: float,
) -> MemoryPlan:
    """Size the pool.  available_bytes: free now, with weights and workspaces already taken.

    Raises CapacityError when not even one block fits, or when the pool asked for is larger than what is free.
    """
    if num_blocks is not None:
        sized_by = f"num_blocks={num_blocks}"
    elif kv_cache_memory_bytes is not None:
        num_blocks, sized_by = kv_cache_memory_bytes // spec.block_bytes, f"kv_cache_memory_bytes={kv_cache_memory_bytes}"
    else:
        num_blocks = int(available_bytes * memory_utilization) // spec.block_bytes
        sized_by = f"memory_utilization={memory_utilization:g} of {available_bytes / MIB:,.0f} MiB free"
    kv_bytes = num_blocks * spec.block_bytes
    if num_blocks < 1:
        raise CapacityError(
            f"the KV cache has room for no block of {spec.block_bytes:,} bytes ({sized_by}); raise kv_cache_memory_bytes or"
            f" memory_utilization, or lower block_size={spec.block_size}"
        )
    if kv_bytes > available_bytes:
        fits = available_bytes // spec.block_bytes
        raise CapacityError(
            f"a KV cache of {num_blocks:,} blocks takes {kv_bytes / MIB:,.0f} MiB ({sized_by}), and {available_bytes / MIB:,.0f} MiB"
            f" are free; set num_blocks to at most {fits:,} or kv_cache_memory_bytes to at most {fits * spec.block_bytes:,}"
        )
    capacity = num_blocks * spec.block_size
    return MemoryPlan(
        weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes,
        kv_bytes=kv_bytes,
        bytes_per_token=spec.bytes_per_token,
        block_size=spec.block_size,
        num_blocks=num_blocks,
        capacity_tokens=capacity,
        max_model_len=max_model_len,
        max_requests_at_max_len=num_blocks / spec.blocks_for(max_model_len),
        available_bytes=available_bytes,
        sized_by=sized_by,
    )
