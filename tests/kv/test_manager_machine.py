"""The reserved layout as a state machine, by the same door.  (The paged one: `test_cache_machine`.)"""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.cache_key import CacheKey
from octavo.kv import Lease, make_kv_cache

KEY = CacheKey()


class ReservedMachine(RuleBasedStateMachine):
    """Regions come and go; none overlaps another, none grows."""

    @initialize(
        num_blocks=st.integers(4, 40), block_size=st.sampled_from([1, 2, 4]), reserve=st.sampled_from(["max", "pow2", "oracle"])
    )
    def make(self, num_blocks: int, block_size: int, reserve: str) -> None:
        self.manager = make_kv_cache(
            num_blocks=num_blocks, block_size=block_size, max_model_len=4 * block_size, kv_layout="reserved", reserve=reserve
        )
        self.leases: list[Lease] = []

    @rule(prompt_len=st.integers(1, 16), more=st.integers(0, 8))
    def open(self, prompt_len: int, more: int) -> None:
        manager, final = self.manager, prompt_len + more
        if final > manager.usable_tokens(prompt_len):
            return
        match = manager.match(KEY, array("i", [0] * prompt_len), prompt_len)
        assert match.num_tokens == 0
        before = manager.num_available
        fitted = manager.fit(match, prompt_len, prompt_len, final, 0)
        lease = manager.open(match, prompt_len, final)
        assert (lease is None) == (fitted is None)
        if lease is None:
            assert manager.num_available == before
        else:
            assert lease.num_cached == 0 and lease.room >= final and manager.grow(lease, final)
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        num_written = data.draw(st.integers(lease.num_written, lease.final_tokens))
        self.manager.commit(lease, array("i", [0] * num_written), num_written)
        assert lease.num_written == num_written

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.manager.release(lease)
        if twice:
            available = self.manager.num_available
            self.manager.release(lease)
            assert self.manager.num_available == available

    @invariant()
    def lawful(self) -> None:
        self.manager.check()
        stats = self.manager.stats()
        parts = (stats.tokens_useful, stats.tokens_reserved, stats.tokens_internal, stats.tokens_external, stats.tokens_free)
        assert min(parts) >= 0 and sum(parts) == stats.tokens_total
        blocks = [block for lease in self.leases for block in lease.blocks]
        assert len(set(blocks)) == len(blocks)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for lease in self.leases:
                self.manager.release(lease)
            assert self.manager.stats().blocks_free == self.manager.stats().blocks_total


ReservedMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestReserved = ReservedMachine.TestCase
