"""State machines over the door: paged (with an index that finds prefixes) and reserved."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_index import PlainIndex

from octavo.kv import Lease, PagedKVCache, make_kv_cache


class ManagerMachine(RuleBasedStateMachine):
    """Sequences over an alphabet of two blocks' worth of content, so that prefixes are often equal."""

    layout = "paged"

    @initialize(
        num_blocks=st.integers(4, 40), block_size=st.sampled_from([1, 2, 4]), reserve=st.sampled_from(["max", "pow2", "oracle"])
    )
    def make(self, num_blocks: int, block_size: int, reserve: str) -> None:
        self.index = PlainIndex(block_size)
        self.block_size = block_size
        self.manager = make_kv_cache(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=4 * block_size,
            kv_layout=self.layout,
            reserve=reserve,
            index=self.index,
        )
        self.leases: list[tuple[Lease, list[int]]] = []
        self.content: dict[int, tuple[int, ...]] = {}  # block -> the prefix whose last tokens it holds

    @rule(
        kinds=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        cut=st.integers(0, 3),
        more=st.integers(0, 8),
        space=st.sampled_from("ab"),
    )
    def open(self, kinds: list[int], cut: int, more: int, space: str) -> None:
        tokens = [kind for kind in kinds for _ in range(self.block_size)]
        tokens = tokens[: max(1, len(tokens) - cut)]
        final = len(tokens) + more
        if final > self.manager.usable_tokens(len(tokens)):
            return
        match = self.manager.match(space, tokens, len(tokens))
        for number, block in enumerate(match.blocks):
            assert self.content[block] == (space, *tokens[: (number + 1) * self.block_size]), "a hit on other content"
        before = self.manager.num_available
        fits = self.manager.fits(match, len(tokens), len(tokens), final, 0)
        lease = self.manager.open(match, len(tokens), final)
        if lease is None:
            assert not fits and self.manager.num_available == before
            return
        assert lease.num_cached == match.num_tokens
        grown = self.manager.grow(lease, len(tokens))
        assert (grown is not None) == fits
        if grown is None:
            self.manager.release(lease)
        else:
            self.leases.append((lease, [space, *tokens]))  # type: ignore[list-item]

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), count=st.integers(1, 6), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, count: int, token: int) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        wanted = min(len(tokens) - 1 + count, lease.final_tokens)
        before, held = self.manager.num_available, len(lease.blocks)
        new = self.manager.grow(lease, wanted)
        if new is None:
            assert self.manager.num_available == before and len(lease.blocks) == held
            return
        assert lease.blocks[held:] == new and lease.room >= wanted
        tokens += [token] * (wanted - len(tokens) + 1)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        space, written = tokens[0], tokens[1:]
        upto = min(data.draw(st.integers(0, len(written))), lease.room)
        for number in range(lease.num_written // self.block_size, upto // self.block_size):
            self.content[lease.blocks[number]] = (space, *written[: (number + 1) * self.block_size])
        self.manager.commit(lease, written, upto)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
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
        assert self.manager.num_leases == len(self.leases)
        if isinstance(self.manager, PagedKVCache):
            # A block that is written by one lease and not yet findable belongs to that lease alone.
            open_ends = [block for lease, _ in self.leases for block in lease.blocks[lease.num_written // self.block_size :]]
            assert len(set(open_ends)) == len(open_ends)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for lease, _ in self.leases:
                self.manager.release(lease)
            stats = self.manager.stats()
            assert stats.blocks_leased == 0 and stats.blocks_free + stats.blocks_cached == stats.blocks_total


class ReservedMachine(ManagerMachine):
    layout = "reserved"


ManagerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
ReservedMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestPaged = ManagerMachine.TestCase
TestReserved = ReservedMachine.TestCase
