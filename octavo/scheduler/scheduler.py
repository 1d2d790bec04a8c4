"""`Scheduler`: who advances by how many tokens in this step, and who yields memory."""

from dataclasses import asdict

from octavo.core.errors import ConfigError, InvalidRequestError, InvariantError
from octavo.core.outputs import FinishReason
from octavo.core.plan import Chunk, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.kv.lease import Lease
from octavo.kv.manager import KVCacheManager
from octavo.scheduler.admission import MAX_OVERTAKES, Admission
from octavo.scheduler.chunk_budget import ChunkBudget
from octavo.scheduler.draft import Draft
from octavo.scheduler.forecast import Forecast
from octavo.scheduler.limits import max_tokens_that_fit, refuse_reason
from octavo.scheduler.sequence import Sequence, Status
from octavo.scheduler.updates import SequenceUpdate, update_of
from octavo.scheduler.waiting import WaitingQueue, insert_in_order, remove_in_order


class Scheduler:
    """Plans steps by iteration-level scheduling (Orca, OSDI 2022) in which every sequence has tokens to catch up with.

    `schedule` makes a plan, then `commit` takes its result or `drop` forgets it; one plan is out at a time.  `add`, `abort` and
    `finish` may come at any moment.  A dropped plan leaves no trace with the runner: what it started, released and appended to block
    tables is handed out again by the next plan.

    One order rules all: priority (lower first), then arrival.  Running sequences go first; each that generates advances in every step.
    When memory is short the youngest yields and is computed again later, so the oldest always progresses and everything ends.

    max_num_seqs: sequences that run at once (never more than max_num_batched_tokens, since each may need a token in every step).
    max_num_batched_tokens: rows computed in one step.
    batching: "continuous", or "static": a batch is taken, and the next one only when all of it has ended; until then ended
        members keep their memory (FasterTransformer as in SOSP 2023, PagedAttention, section 6.1).
    target_step_seconds: see ChunkBudget.  max_overtakes: see Admission.
    Raises ConfigError for a setting that can't be.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        batching: str = "continuous",
        target_step_seconds: float = 0.1,
        max_overtakes: int = MAX_OVERTAKES,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ConfigError(f"{max_num_seqs=} and {max_num_batched_tokens=} must both be at least 1")
        if batching not in ("continuous", "static"):
            raise ConfigError(f"batching={batching!r} is not one of continuous, static")
        self._manager = manager
        self._max_running = min(max_num_seqs, max_num_batched_tokens)
        self._static = batching == "static"
        self._chunk_budget = ChunkBudget(max_num_batched_tokens, target_step_seconds)
        self._forecast = Forecast(releases_at_end=not self._static)
        self._admission = Admission(manager, self._forecast, max_overtakes)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in order: the last one is the next victim
        self._live: dict[int, Sequence] = {}
        self._requests: dict[str, list[Sequence]] = {}
        self._kept: list[Lease] = []  # of ended members of a static batch
        self._released: list[int] = []  # sequences that the runner is still to forget
        self._unservable: list[SequenceUpdate] = []
        self._in_flight: StepPlan | None = None
        self._next_seq_id = 0
        self._step = 0
        self._preemptions = 0
        self._tokens_computed = self._tokens_recomputed = self._tokens_cached = 0

    # Requests come and go.

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._unservable)

    def request_ids(self) -> list[str]:
        """The requests that have not ended."""
        return list(self._requests)

    def max_tokens_that_fit(self, prompt_len: int) -> int:
        """The largest max_tokens with which such a prompt can ever run; 0 when the prompt alone can't."""
        return max_tokens_that_fit(self._manager, prompt_len)

    def refuse_reason(self, request: Request) -> str | None:
        """Why `request` can never run in this pool, with numbers and remedy; None when it can."""
        return refuse_reason(self._manager, len(request.prompt_token_ids), request.max_tokens)

    def add(self, request: Request) -> list[int]:
        """Queue `request` as `params.n` sequences: their ids, in the order of their sample index.

        Raises InvalidRequestError, and queues nothing, for what can never run and for an id that is in use.
        """
        if (reason := self.refuse_reason(request)) is not None:
            raise InvalidRequestError(reason)
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by a request that has not ended")
        sequences = [Sequence.of(request, self._next_seq_id + index, index) for index in range(request.params.n)]
        self._waiting.add(*sequences)  # may raise, so nothing is noted before
        self._next_seq_id += len(sequences)
        self._requests[request.request_id] = sequences
        self._live |= {sequence.seq_id: sequence for sequence in sequences}
        return [sequence.seq_id for sequence in sequences]

    def abort(self, request_id: str) -> bool:
        """End all sequences of a request, wherever they are, and free their memory.  False when there is no such request."""
        sequences = self._requests.get(request_id)
        if sequences is None:
            return False
        for sequence in list(sequences):
            self._end(sequence, "abort")
        return True

    def finish(self, seq_id: int, reason: FinishReason, stop_reason: str | int | None = None) -> SequenceUpdate | None:
        """End one sequence for a cause unseen here (a stop string): its last update; None when it has ended already."""
        sequence = self._live.get(seq_id)
        if sequence is None:
            return None
        if reason == "stop":
            self._forecast.observe_end(sequence.num_generated, sequence.request.max_tokens)
        self._end(sequence, reason)
        return update_of(sequence, finish_reason=reason, stop_reason=stop_reason)

    # A step: schedule, then commit or drop.

    def schedule(self) -> StepPlan:
        """The next plan; empty when there is no work.  Mutates: sequences enter and yield, leases grow."""
        if self._in_flight is not None:
            raise InvariantError(f"step {self._in_flight.step} was neither committed nor dropped before the next was asked for")
        streams = sum(1 for sequence in self._running if len(sequence.tokens) - sequence.num_computed == 1)
        behind = len(self._running) - streams + len(self._waiting)
        draft = Draft(self._chunk_budget.tokens(streams, behind))
        memory_was_short = self._advance_running(draft)
        # Whoever just yielded would be the first to enter again: it waits for the next step.
        if not self._running or not (memory_was_short or self._static):
            self._admit(draft)
        self._step += 1
        plan = StepPlan(step=self._step, released=tuple(self._released), started=tuple(draft.started), chunks=tuple(draft.chunks))
        self._in_flight = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take what the step produced: the updates of those sequences to which it brought something."""
        self._land(plan)
        del self._released[: len(plan.released)]
        for start in plan.started:
            if (sequence := self._live.get(start.seq_id)) is not None:
                sequence.is_known = True
            else:  # it was aborted meanwhile
                self._released.append(start.seq_id)
        updates, self._unservable = self._unservable, []
        streams = prompt_tokens = 0
        for chunk in plan.chunks:
            num_tokens = len(chunk.tokens)
            if num_tokens == 1:
                streams += 1
            else:
                prompt_tokens += num_tokens
            sequence = self._live.get(chunk.seq_id)
            if sequence is not None and (update := self._take(sequence, chunk, result)) is not None:
                updates.append(update)
        self._tokens_computed += streams + prompt_tokens
        self._chunk_budget.observe(streams, prompt_tokens, result.elapsed)
        return updates

    def drop(self, plan: StepPlan) -> None:
        """The plan was not carried out: the next one hands everything out again.

        A runner that did a part of it meets the same again: a start replaces what it knew, a release of the unknown does nothing.
        """
        self._land(plan)

    def drop_in_flight(self) -> None:
        """As `drop`, for whatever plan is out, if any: after an interrupt nobody may know whether one was handed out."""
        self._in_flight = None

    def stats(self) -> EngineStats:
        return EngineStats(
            **asdict(self._manager.stats()),
            waiting=len(self._waiting),
            running=len(self._running),
            steps=self._step,
            preemptions=self._preemptions,
            overtakes=self._admission.overtakes,
            tokens_computed=self._tokens_computed,
            tokens_recomputed=self._tokens_recomputed,
            tokens_cached=self._tokens_cached,
            output_share=self._forecast.output_share,
            prefill_speed=self._chunk_budget.prefill_speed,
        )

    def check(self) -> None:
        """Raise InvariantError when queues, leases and memory contradict each other.  O(blocks + sequences)."""
        self._manager.check()
        for name, sequences in (("waiting", list(self._waiting)), ("running", self._running)):
            orders = [sequence.order for sequence in sequences]
            if orders != sorted(set(orders)):
                raise InvariantError(f"the {name} sequences are out of order: {orders}")
        if len(self._waiting) + len(self._running) != len(self._live):
            raise InvariantError(
                f"{len(self._waiting)} waiting and {len(self._running)} running sequences, but {len(self._live)} are alive"
            )
        for sequence in self._live.values():
            lease, running = sequence.lease, sequence.status is Status.RUNNING
            if running != (lease is not None and lease.is_open):
                raise InvariantError(f"sequence {sequence.seq_id} is {sequence.status.value} with the lease {lease}")
            if lease is not None and not sequence.num_computed <= min(lease.num_written, len(sequence.tokens)):
                raise InvariantError(
                    f"sequence {sequence.seq_id} counts {sequence.num_computed} tokens of {len(sequence.tokens)} as computed; "
                    f"{lease.num_written} are written"
                )
        leases = len(self._running) + len(self._kept)
        if leases != self._manager.num_leases:
            raise InvariantError(f"sequences hold {leases} leases, but the memory has {self._manager.num_leases} out")

    # How a plan comes about.

    def _advance_running(self, draft: Draft) -> bool:
        """Give every running sequence its tokens, oldest first; whether memory was short.

        A victim is younger than the one that needs memory, so it has no chunk in this draft yet: nothing is ever taken back from it.
        """
        running, short = self._running, False
        index = 0
        while index < len(running):
            sequence = running[index]
            index += 1
            start = sequence.num_computed
            if len(sequence.tokens) - start == 1:
                end = start + 1
            else:
                end = sequence.next_stop(draft.budget)
                if end == start:
                    continue
                draft.budget -= end - start
            lease = _lease_of(sequence)
            while end > lease.room and self._manager.grow(lease, end) is None:
                short = True
                self._preempt(running[-1])
                if not lease.is_open:  # it was itself the youngest
                    return True
            draft.add(sequence, end, lease)
        return short

    def _admit(self, draft: Draft) -> None:
        if not self._running:
            self._end_static_batch()
        if not self._waiting or draft.budget < 1 or len(self._running) >= self._max_running:
            return
        entered: list[Sequence] = []
        budget = draft.budget
        for sequence in self._admission.entering(self._waiting, self._running):
            sequence.status = Status.RUNNING
            self._tokens_cached += sequence.num_computed
            if sequence.num_cached_at_first is None:
                sequence.num_cached_at_first = sequence.num_computed
            entered.append(sequence)
            budget -= len(sequence.tokens) - sequence.num_computed
            full = len(self._running) + len(entered) >= self._max_running
            if full or (budget < 1 and not self._static):  # a static batch is taken whole, and computed as the budget allows
                break
        for sequence in entered:
            insert_in_order(self._running, sequence)
            end = sequence.next_stop(draft.budget)
            lease = _lease_of(sequence)
            if end > sequence.num_computed and self._manager.grow(lease, end) is not None:
                draft.budget -= end - sequence.num_computed
                draft.add(sequence, end, lease)
        if not self._running and self._waiting:
            self._give_up(self._waiting.head)

    def _preempt(self, victim: Sequence) -> None:
        """Take the youngest one's memory; it will be computed again from what is found in memory by then."""
        self._running.pop()
        self._manager.release(_lease_of(victim))
        self._forget(victim)
        victim.lease = None
        victim.status = Status.PREEMPTED
        victim.num_computed_before = max(victim.num_computed_before, victim.num_computed)
        victim.num_computed = 0
        self._waiting.add(victim)
        self._preemptions += 1
        self._forecast.observe_shortage()

    def _give_up(self, sequence: Sequence) -> None:
        """Nothing runs and it still does not fit: the pool has shrunk since it was queued.  It is answered, not kept waiting."""
        reason = self.refuse_reason(sequence.request) or (
            f"{len(sequence.tokens)} tokens don't fit {self._manager.num_available} available blocks of {self._manager.block_size}; "
            "raise num_blocks or kv_cache_memory_bytes"
        )
        self._end(sequence, "error")
        self._unservable.append(update_of(sequence, finish_reason="error", error=reason))

    # What a result brings.

    def _land(self, plan: StepPlan) -> None:
        if self._in_flight is None or self._in_flight.step != plan.step:
            raise InvariantError(
                f"step {plan.step} came back, but {'no step' if self._in_flight is None else self._in_flight.step} is out"
            )
        self._in_flight = None

    def _take(self, sequence: Sequence, chunk: Chunk, result: StepResult) -> SequenceUpdate | None:
        seq_id = sequence.seq_id
        sample = result.samples.get(seq_id) if chunk.sample else None
        rows = result.prompt_logprobs.get(seq_id, ()) if chunk.prompt_rows else ()
        error = result.failed.get(seq_id)
        if error is None and ((chunk.sample and sample is None) or len(rows) != chunk.prompt_rows):
            error = f"the runner gave {len(rows)} of {chunk.prompt_rows} prompt logprobs and the sample {sample} for sequence {seq_id}"
        if error is not None:
            self._end(sequence, "error")
            return update_of(sequence, finish_reason="error", error=error)

        end = chunk.start + len(chunk.tokens)
        sequence.num_computed = end
        sequence.num_blocks_sent += len(chunk.new_blocks)
        if chunk.start < sequence.num_computed_before:
            self._tokens_recomputed += min(end, sequence.num_computed_before) - chunk.start
        if chunk.prompt_rows:
            sequence.num_prompt_rows_done = chunk.start + chunk.prompt_rows
        self._manager.commit(_lease_of(sequence), sequence.tokens, end)
        if sample is None:
            return update_of(sequence, prompt_logprobs=tuple(rows)) if rows else None

        sequence.tokens.append(sample.token_id)
        reason, stop_reason = self._ending(sequence, sample.token_id)
        if reason is not None:
            self._forecast.observe_end(sequence.num_generated, sequence.request.max_tokens)
            self._end(sequence, reason)
        return SequenceUpdate(
            seq_id=seq_id,
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            token_id=sample.token_id,
            logprobs=sample.logprobs,
            prompt_logprobs=tuple(rows),
            num_cached_tokens=sequence.num_cached_at_first or 0,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _ending(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        request = sequence.request
        generated = len(sequence.tokens) - sequence.prompt_len
        if token in request.stop_token_ids and generated > request.params.min_tokens:
            named_by_caller = token in (request.params.stop_token_ids or ())
            return "stop", token if named_by_caller else None
        return ("length", None) if generated >= request.max_tokens else (None, None)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The one way out, from every state."""
        if sequence.lease is not None:
            remove_in_order(self._running, sequence)
            if self._static and reason in ("stop", "length"):
                self._manager.keep(sequence.lease)
                self._kept.append(sequence.lease)
            else:
                self._manager.release(sequence.lease)
            self._forget(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.lease = None
        sequence.status = Status.FINISHED
        del self._live[sequence.seq_id]
        samples = self._requests[sequence.request.request_id]
        samples.remove(sequence)
        if not samples:
            del self._requests[sequence.request.request_id]
        if not self._running:
            self._end_static_batch()

    def _end_static_batch(self) -> None:
        for lease in self._kept:
            self._manager.release(lease)
        self._kept.clear()

    def _forget(self, sequence: Sequence) -> None:
        """The runner drops its table and sampler state with the next plan, if it knows the sequence at all."""
        if sequence.is_known:
            self._released.append(sequence.seq_id)
        sequence.is_known = False
        sequence.num_blocks_sent = 0


def _lease_of(sequence: Sequence) -> Lease:
    if sequence.lease is None:
        raise InvariantError(f"sequence {sequence.seq_id} runs without a lease")
    return sequence.lease
