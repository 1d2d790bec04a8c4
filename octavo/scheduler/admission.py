"""`Admission`: which waiting sequences may enter, by what the memory has now and what it will have to hold."""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from octavo.core.outputs import CacheReport
from octavo.kv.lease import Lease, PrefixMatch
from octavo.kv.manager import KVCacheManager, Miss
from octavo.scheduler.followers import Followers
from octavo.scheduler.forecast import Forecast, join
from octavo.scheduler.population import lease_of
from octavo.scheduler.roster import Roster
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.siblings import Source, fork_source, is_being_computed
from octavo.scheduler.tally import Tally
from octavo.scheduler.waiting import WaitingQueue

# A head of the queue that does not fit is overtaken at most so often in its life.
MAX_OVERTAKES = 8
# Whoever did not fit is looked up in memory again when more room has come, or else at every so manieth asking.
LOOK_AGAIN = 16


class _Try(Enum):
    ENTERED = 1
    FOLLOWS = 2  # somebody is computing its prefix
    DOES_NOT_FIT = 3


class _Room:
    """The memory as it stands before anybody enters in this step.

    promised: available blocks that entered sequences still need for the tokens that they have; so half-computed prompts never wait
        for each other.
    tokens: what all sequences can hold together.  members: (expected growth, tokens held), sorted.
    slots: how many sequences may still enter.  others_run: whether anybody may give memory back.
    """

    __slots__ = ("members", "others_run", "promised", "slots", "tokens")

    def __init__(self, tokens: int, slots: int, others_run: bool) -> None:
        self.tokens = tokens
        self.slots = slots
        self.others_run = others_run
        self.promised = 0
        self.members: list[tuple[int, int]] = []


class Admission:
    """Opens leases for those who may enter.

    A sequence fits when (1) the blocks for all tokens it has, and the copies for it to write, are available beyond what is promised,
    and (2) where memory is taken on demand, the forecast of the peak stays inside the pool.  When nothing runs, (1) alone decides.

    When the head of the queue does not fit, others behind it may overtake it, under a bound that guarantees the head's start: only
    those that can run to their end beside the head (at its expected size), so that it starts when those that ran before it have
    ended; and at most MAX_OVERTAKES in the head's life, so that a wrong expectation makes it wait for these few at most.
    Followers stand aside meanwhile: they neither block the queue nor are overtaken.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        forecast: Forecast,
        followers: Followers,
        roster: Roster,
        tally: Tally,
        *,
        max_overtakes: int = MAX_OVERTAKES,
    ) -> None:
        self._manager = manager
        self._forecast = forecast
        self._followers = followers
        self._roster = roster
        self._tally = tally
        self._max_overtakes = max_overtakes
        self.overtakes = 0

    def entering(self, waiting: WaitingQueue, running: list[Sequence], slots: int) -> Iterator[Sequence]:
        """Sequences that enter, in order: each leaves the queue and has a lease when it is given out.

        slots: how many more may run; a beam search takes one for each of its beams when the first of them enters.
        Stop asking when the step is full.  No lease may grow, open or close otherwise while this is used.
        """
        room = _Room(self._manager.num_available * self._manager.block_size, slots, bool(running))
        self._survey(running, room)
        queue = waiting.snapshot()
        # Beams whose siblings run and wait for them: they go first, into slots and memory that their search was promised as a whole.
        for beam in [one for one in queue if one.beams is not None and one.beams.num_running]:
            outcome = self._enter(beam, room)
            if outcome is _Try.DOES_NOT_FIT:
                return
            if outcome is _Try.ENTERED:
                waiting.remove(beam)
                yield beam
        for sequence in queue:
            if sequence.lease is not None or self._followers.keeps_waiting(sequence):
                continue
            outcome = self._enter(sequence, room)
            if outcome is _Try.ENTERED:
                waiting.remove(sequence)
                yield sequence
            elif outcome is _Try.DOES_NOT_FIT:
                yield from self._overtaking(sequence, waiting, running, room)
                return

    def _overtaking(self, head: Sequence, waiting: WaitingQueue, running: list[Sequence], room: _Room) -> Iterator[Sequence]:
        manager = self._manager
        expected = len(head.tokens) + self._forecast.left(head.final_tokens - len(head.tokens))
        beside = manager.num_blocks - (manager.blocks_for(expected) if manager.grows_on_demand else self._whole_life(head))
        beside -= sum(self._whole_life(other) for other in running if other.overtook == head.seq_id)
        for sequence in waiting.behind(head, self._max_overtakes):
            if head.times_overtaken >= self._max_overtakes or room.slots < 1:
                return
            blocks = self._whole_life(sequence)
            if blocks <= beside and not self._followers.keeps_waiting(sequence) and self._enter(sequence, room) is _Try.ENTERED:
                beside -= blocks
                waiting.remove(sequence)
                sequence.overtook = head.seq_id
                head.times_overtaken += 1
                self.overtakes += 1
                yield sequence

    def _survey(self, running: list[Sequence], room: _Room) -> None:
        manager = self._manager
        for sequence in running:
            lease = sequence.lease
            if lease is not None:
                room.promised += max(0, manager.blocks_for(len(sequence.tokens)) - len(lease.blocks)) + manager.copy_demand(lease)
                # What was found at admission may be shared: it counts neither as held nor as coming back.
                room.tokens += lease.room - lease.num_cached
                if manager.grows_on_demand:
                    room.members.append(self._member(sequence, lease.num_cached))
        room.members.sort()

    def _enter(self, sequence: Sequence, room: _Room) -> _Try:
        """Open a lease for `sequence` if it fits; mutates `room` and `sequence` only then (and notes whom it follows)."""
        manager, group = self._manager, sequence.beams
        slots = 1 if group is None else 0 if group.num_running else group.width
        siblings_wait = group is not None and group.num_running > 0
        if slots > room.slots or (not siblings_wait and self._is_hopeless(sequence, room)):
            return _Try.DOES_NOT_FIT
        # Tokens whose prompt logprobs are still owed must be computed, found or not.
        owes_rows = sequence.num_prompt_rows_done < sequence.prompt_len - 1
        limit = sequence.num_prompt_rows_done if owes_rows else len(sequence.tokens)
        match = manager.match(sequence.key, sequence.tokens, limit)
        source = None if owes_rows else self._source(sequence)
        found = max(match.num_tokens, source.num_tokens if source else 0)
        if siblings_wait:
            # The memory is sure to hold a search only if its beams share whatever they can, however long that takes.
            follows = is_being_computed(sequence, self._roster.of_request(sequence.request.request_id), found)
        else:
            follows = not owes_rows and self._followers.follows(sequence, found)
        if follows:
            return _Try.FOLLOWS
        if source is not None and source.num_tokens >= match.num_tokens:
            entered = self._fork(sequence, source, room)
        else:
            entered = self._open(sequence, match, room)
        if not entered:
            sequence.refused_with = manager.num_available - room.promised
            return _Try.DOES_NOT_FIT
        sequence.refused_with = None
        room.slots -= slots
        self._followers.lead(sequence)
        return _Try.ENTERED

    def _is_hopeless(self, sequence: Sequence, room: _Room) -> bool:
        """Whether there is no more room than when it last did not fit: matching a long prompt anew in each step would be dear."""
        if sequence.refused_with is None or not room.others_run or self._manager.num_available - room.promised > sequence.refused_with:
            return False
        sequence.times_refused += 1
        return sequence.times_refused % LOOK_AGAIN != 0

    def _open(self, sequence: Sequence, match: PrefixMatch, room: _Room) -> bool:
        """A lease on what memory finds, if the rest fits."""
        manager = self._manager
        fitting = manager.fit(match, len(sequence.tokens), sequence.prompt_len, sequence.final_tokens, room.promised)
        if fitting is None:
            return False
        # Blocks found that nobody holds are as good as available until they are leased.
        unheld = manager.num_unheld(fitting) * manager.block_size
        if not self._peak_fits(sequence, fitting.num_tokens, unheld, room):
            return False
        miss = manager.why_missed(sequence.key, sequence.tokens, fitting) if sequence.cache is None else Miss(None)
        lease = manager.open(fitting, sequence.prompt_len, sequence.final_tokens)
        if lease is None:
            return False
        room.tokens -= unheld
        report = CacheReport(num_published=fitting.num_published, miss=miss.reason, miss_field=miss.field)
        self._take_in(sequence, lease, report, room)
        return True

    def _fork(self, sequence: Sequence, source: Source, room: _Room) -> bool:
        """A lease on what a sibling has written, if the rest fits.

        An open last block is copied at once: the sibling may be about to write into it, in this very step.
        """
        manager = self._manager
        copies = source.num_tokens % manager.block_size > 0 and sequence.final_tokens > source.num_tokens
        demand = manager.blocks_for(len(sequence.tokens)) - manager.blocks_for(source.num_tokens) + copies
        if demand + room.promised > manager.num_available or not self._peak_fits(sequence, source.num_tokens, 0, room):
            return False
        lease = manager.fork(lease_of(source.sequence), source.num_tokens, sequence.final_tokens)
        if copies and not manager.grow(lease, source.num_tokens + 1):
            manager.release(lease)
            return False
        self._take_in(sequence, lease, CacheReport(num_forked=source.num_tokens), room)
        return True

    def _take_in(self, sequence: Sequence, lease: Lease, report: CacheReport, room: _Room) -> None:
        manager = self._manager
        if manager.grows_on_demand:
            room.members = join(room.members, self._member(sequence, lease.num_cached))
        room.promised += max(0, manager.blocks_for(len(sequence.tokens)) - len(lease.blocks)) + manager.copy_demand(lease)
        sequence.lease = lease
        # The last token is always computed: its logits choose the next one.
        sequence.num_computed = min(lease.num_cached, len(sequence.tokens) - 1)
        if sequence.cache is None:
            sequence.cache = replace(report, num_tokens=sequence.num_computed)
            self._tally.observe_first_admission(sequence.prompt_len, sequence.cache)

    def _source(self, sequence: Sequence) -> Source | None:
        siblings = self._roster.of_request(sequence.request.request_id) if self._manager.can_fork else []
        return fork_source(sequence, siblings) if len(siblings) > 1 else None

    def _peak_fits(self, sequence: Sequence, num_shared: int, unheld_tokens: int, room: _Room) -> bool:
        siblings_wait = sequence.beams is not None and sequence.beams.num_running > 0
        if not room.members or not self._manager.grows_on_demand or siblings_wait:
            return True
        members = join(room.members, self._member(sequence, num_shared))
        return self._forecast.peak(members) <= room.tokens - unheld_tokens

    def _member(self, sequence: Sequence, num_shared: int) -> tuple[int, int]:
        left = self._forecast.left(sequence.final_tokens - len(sequence.tokens))
        at_the_end = self._manager.blocks_for(len(sequence.tokens) + left) * self._manager.block_size
        return left, at_the_end - left - num_shared

    def _whole_life(self, sequence: Sequence) -> int:
        return self._manager.blocks_at_most(sequence.prompt_len, sequence.final_tokens)
