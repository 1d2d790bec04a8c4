"""`Admission`: which waiting sequences may enter, by what the memory has now and what it will have to hold."""

from collections.abc import Iterator

from octavo.kv.manager import KVCacheManager
from octavo.scheduler.forecast import Forecast, join
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waiting import WaitingQueue

# A head of the queue that does not fit is overtaken at most so often in its life.
MAX_OVERTAKES = 8


class _Room:
    """The memory as it stands before anybody enters in this step.

    promised: available blocks that entered sequences still need for the tokens that they have; so half-computed prompts never wait
        for each other.
    tokens: what all sequences can hold together.  members: (expected growth, tokens held), sorted.
    """

    __slots__ = ("members", "promised", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.promised = 0
        self.members: list[tuple[int, int]] = []


class Admission:
    """Opens leases for those who may enter.

    A sequence fits when (1) the blocks for all tokens it has are available beyond what is promised, and (2) where memory is taken
    on demand, the forecast of the peak stays inside the pool.  When nothing runs, (1) alone decides.

    When the head of the queue does not fit, others behind it may overtake it, under a bound that guarantees the head's start: only
    those that can run to their end beside the head (at its expected size), so that it starts when those that ran before it have
    ended; and at most MAX_OVERTAKES in the head's life, so that a wrong expectation makes it wait for these few at most.
    """

    def __init__(self, manager: KVCacheManager, forecast: Forecast, max_overtakes: int = MAX_OVERTAKES) -> None:
        self._manager = manager
        self._forecast = forecast
        self._max_overtakes = max_overtakes
        self.overtakes = 0

    def entering(self, waiting: WaitingQueue, running: list[Sequence]) -> Iterator[Sequence]:
        """Sequences that enter, in order: each leaves the queue and has a lease when it is given out.

        Stop asking when the step is full.  No lease may grow, open or close otherwise while this is used.
        """
        room = self._survey(running)
        while waiting:
            head = waiting.head
            if not self._enter(head, room):
                yield from self._overtaking(head, waiting, running, room)
                return
            waiting.remove(head)
            yield head

    def _overtaking(self, head: Sequence, waiting: WaitingQueue, running: list[Sequence], room: _Room) -> Iterator[Sequence]:
        manager = self._manager
        expected = len(head.tokens) + self._forecast.left(head.final_tokens - len(head.tokens))
        beside = manager.num_blocks - (manager.blocks_for(expected) if manager.grows_on_demand else self._whole_life(head))
        beside -= sum(self._whole_life(other) for other in running if other.overtook == head.seq_id)
        for sequence in waiting.behind_head(self._max_overtakes):
            if head.times_overtaken >= self._max_overtakes:
                return
            blocks = self._whole_life(sequence)
            if blocks <= beside and self._enter(sequence, room):
                beside -= blocks
                waiting.remove(sequence)
                sequence.overtook = head.seq_id
                head.times_overtaken += 1
                self.overtakes += 1
                yield sequence

    def _survey(self, running: list[Sequence]) -> _Room:
        manager = self._manager
        room = _Room(manager.num_available * manager.block_size)
        for sequence in running:
            lease = sequence.lease
            if lease is not None:
                room.promised += max(0, manager.blocks_for(len(sequence.tokens)) - len(lease.blocks))
                # What was found at admission may be shared: it counts neither as held nor as coming back.
                room.tokens += lease.room - lease.num_cached
                if manager.grows_on_demand:
                    room.members.append(self._member(sequence, lease.num_cached))
        room.members.sort()
        return room

    def _enter(self, sequence: Sequence, room: _Room) -> bool:
        """Open a lease for `sequence` if it fits; mutates `room` and `sequence` only then."""
        manager, request = self._manager, sequence.request
        # Tokens whose prompt logprobs are still owed must be computed, found or not.
        owes_rows = sequence.num_prompt_rows_done < sequence.prompt_len - 1
        limit = sequence.num_prompt_rows_done if owes_rows else len(sequence.tokens)
        match = manager.match((request.tenant, request.cache_salt), sequence.tokens, limit)
        if not manager.fits(match, len(sequence.tokens), sequence.prompt_len, sequence.final_tokens, room.promised):
            return False
        # Blocks found that nobody holds are as good as available until they are leased.
        room_left = room.tokens - manager.num_unheld(match) * manager.block_size
        members = join(room.members, self._member(sequence, match.num_tokens)) if manager.grows_on_demand else []
        if room.members and self._forecast.peak(members) > room_left:
            return False
        lease = manager.open(match, sequence.prompt_len, sequence.final_tokens)
        if lease is None:
            return False
        room.promised += max(0, manager.blocks_for(len(sequence.tokens)) - len(lease.blocks))
        room.tokens, room.members = room_left, members
        sequence.lease = lease
        sequence.num_blocks_sent = 0
        # The last token is always computed: its logits choose the next one.
        sequence.num_computed = min(lease.num_cached, len(sequence.tokens) - 1)
        return True

    def _member(self, sequence: Sequence, num_shared: int) -> tuple[int, int]:
        left = self._forecast.left(sequence.final_tokens - len(sequence.tokens))
        at_the_end = self._manager.blocks_for(len(sequence.tokens) + left) * self._manager.block_size
        return left, at_the_end - left - num_shared

    def _whole_life(self, sequence: Sequence) -> int:
        return self._manager.blocks_at_most(sequence.prompt_len, sequence.final_tokens)
