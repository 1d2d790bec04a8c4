"""The pool is sized before the weights are read, so their room is set aside with the workspaces'."""

import pytest
from engine_models import start

from octavo.core.errors import CapacityError
from octavo.spec.host import HostMemory

MIB = 2**20


def with_free(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr("octavo.engine.build.read_host_memory", lambda: HostMemory(available, available, "machine"))


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_weights_and_workspaces_are_set_aside(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    with_free(monkeypatch, 64 * MIB)
    with start(num_blocks=None, memory_utilization=0.95, max_num_batched_tokens=64, kernels=kernels) as llm:
        plan = llm.memory_plan
    taken = plan.weights_bytes + plan.workspace_bytes
    assert taken > MIB // 2 and 0.9 * (64 * MIB - taken) < plan.kv_bytes < 64 * MIB - taken


def test_a_pool_that_leaves_no_room_for_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(max_num_batched_tokens=64) as llm:
        plan = llm.memory_plan
    with_free(monkeypatch, plan.kv_bytes + plan.workspace_bytes + plan.weights_bytes // 2)
    with pytest.raises(CapacityError, match="a KV cache of 256 blocks takes"):
        start(max_num_batched_tokens=64)
