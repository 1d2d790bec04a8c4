"""`Population`: all sequences that have not ended, and the few ways in which one changes its state."""

from array import array

from octavo.core.errors import InvariantError
from octavo.core.outputs import CacheReport, FinishReason
from octavo.kv.lease import Lease
from octavo.kv.manager import KVCacheManager
from octavo.scheduler.roster import Roster
from octavo.scheduler.sequence import Sequence, Status
from octavo.scheduler.waiting import WaitingQueue, insert_in_order, remove_in_order


class Population:
    """Waiting and running sequences, their leases, and what the runner is still to forget.

    waiting: in order; none of them holds a lease.  running: in order: the last one is the next victim; each holds a lease.
    released: sequences that the runner is to forget with the next plan.
    keeps_ended: leases of sequences that ended by themselves stay until nothing runs any more (static batching).
    """

    def __init__(self, manager: KVCacheManager, keeps_ended: bool = False) -> None:
        self._manager = manager
        self._keeps_ended = keeps_ended
        self._kept: list[Lease] = []
        self.next_seq_id = 0
        self.roster = Roster()
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.released: list[int] = []

    def add(self, sequences: list[Sequence]) -> None:
        """Queue all of them, numbered from `next_seq_id` on; none when it raises (TypeError: a priority that can't be compared)."""
        self.waiting.add(*sequences)
        self.roster.add(sequences)
        self.next_seq_id += len(sequences)

    def enter(self, sequence: Sequence) -> None:
        """It has left the queue and has a lease."""
        sequence.status = Status.RUNNING
        insert_in_order(self.running, sequence)

    def preempt_youngest(self) -> Sequence:
        """Take its memory; it will be computed again from what is found in memory by then."""
        victim = self.running.pop()
        self._manager.release(lease_of(victim))
        self.forget(victim)
        victim.lease = None
        victim.status = Status.PREEMPTED
        victim.num_computed_before = max(victim.num_computed_before, victim.num_computed)
        victim.num_computed = 0
        self.waiting.add(victim)
        return victim

    def fork(self, parent: Sequence, token: int) -> Sequence:
        """A sequence with all tokens of `parent` and one more: in its memory while it runs, else it waits as it does."""
        child = Sequence.of(parent.request, parent.key, parent.order[1], self.next_seq_id)
        self.next_seq_id += 1
        child.tokens = array("i", parent.tokens)
        child.tokens.append(token)
        child.num_prompt_rows_done = parent.num_prompt_rows_done
        child.cache, child.beams = parent.cache, parent.beams
        child.num_computed_before = parent.num_computed_before
        self.roster.add([child])
        if parent.lease is None:
            child.status = parent.status
            self.waiting.add(child)
        else:
            child.lease = self._manager.fork(parent.lease, len(parent.tokens), child.final_tokens)
            child.num_computed = len(parent.tokens)
            self.enter(child)
        return child

    def hand_on(self, sequence: Sequence) -> Sequence | None:
        """`sequence` is about to end: a further sample of its request that never ran (if any) goes on with its prompt's memory.

        Without it, samples that wait for each other's prompt would each compute it when they end at once.
        """
        lease, prompt_len = sequence.lease, sequence.prompt_len
        if lease is None or not self._manager.can_fork or self._keeps_ended or sequence.request.params.num_samples == 1:
            return None
        if lease.num_written < prompt_len or lease.copies:
            return None
        for heir in self.roster.of_request(sequence.request.request_id):
            if heir.cache is None and heir.num_prompt_rows_done >= prompt_len - 1:  # else it owes rows, which must be computed
                self.waiting.remove(heir)
                heir.leader = None
                heir.lease = self._manager.fork(lease, prompt_len, heir.final_tokens)
                heir.num_computed = prompt_len - 1  # the last token is computed once more, for its logits
                heir.cache = CacheReport(heir.num_computed, num_forked=prompt_len)
                self.enter(heir)
                return heir
        return None

    def end(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """The one way out, from every state.  reason: None for a beam that others have outdone."""
        if sequence.lease is not None:
            remove_in_order(self.running, sequence)
            if self._keeps_ended and reason in ("stop", "length"):
                self._manager.keep(sequence.lease)
                self._kept.append(sequence.lease)
            else:
                self._manager.release(sequence.lease)
            self.forget(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.lease = None
        sequence.status = Status.FINISHED
        self.roster.remove(sequence)
        if not self.running:
            self.release_kept()

    def release_kept(self) -> None:
        for lease in self._kept:
            self._manager.release(lease)
        self._kept.clear()

    def forget(self, sequence: Sequence) -> None:
        """The runner drops its table and sampler state with the next plan, if it knows the sequence at all."""
        if sequence.is_known:
            self.released.append(sequence.seq_id)
        sequence.is_known = False
        if sequence.lease is not None:
            sequence.lease.changed_from = 0

    def check(self) -> None:
        """Raise InvariantError when queues and leases contradict each other.  O(sequences)."""
        for name, sequences in (("waiting", list(self.waiting)), ("running", self.running)):
            orders = [sequence.order for sequence in sequences]
            if orders != sorted(set(orders)):
                raise InvariantError(f"the {name} sequences are out of order: {orders}")
        if len(self.waiting) + len(self.running) != len(self.roster):
            raise InvariantError(
                f"{len(self.waiting)} waiting and {len(self.running)} running sequences, but {len(self.roster)} are alive"
            )
        for sequence in self.roster:
            lease, running = sequence.lease, sequence.status is Status.RUNNING
            if running != (lease is not None and lease.is_open):
                raise InvariantError(f"sequence {sequence.seq_id} is {sequence.status.value} with the lease {lease}")
            if lease is not None and not sequence.num_computed <= min(lease.num_written, len(sequence.tokens)):
                raise InvariantError(
                    f"sequence {sequence.seq_id} counts {sequence.num_computed} tokens of {len(sequence.tokens)} as computed; "
                    f"{lease.num_written} are written"
                )
        leases = len(self.running) + len(self._kept)
        if leases != self._manager.num_leases:
            raise InvariantError(f"sequences hold {leases} leases, but the memory has {self._manager.num_leases} out")


def lease_of(sequence: Sequence) -> Lease:
    """Its lease.  Raises InvariantError when it has none."""
    if sequence.lease is None:
        raise InvariantError(f"sequence {sequence.seq_id} runs without a lease")
    return sequence.lease
