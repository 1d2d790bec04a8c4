"""`Scheduler`: who advances by how many tokens in this step, and who yields memory."""

from dataclasses import asdict, replace
from math import ceil

from octavo.core.cache_key import CacheKey, PublishedNamespace, TenantNamespace
from octavo.core.errors import ConfigError, InvalidRequestError, InvariantError
from octavo.core.outputs import FinishReason
from octavo.core.plan import Chunk, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.kv.manager import KVCacheManager
from octavo.scheduler.admission import MAX_OVERTAKES, Admission
from octavo.scheduler.beam_group import begin_beams
from octavo.scheduler.chunk_budget import ChunkBudget
from octavo.scheduler.draft import Draft
from octavo.scheduler.followers import Followers
from octavo.scheduler.forecast import Forecast
from octavo.scheduler.limits import max_tokens_that_fit, refuse_reason
from octavo.scheduler.population import Population, lease_of
from octavo.scheduler.sequence import Sequence, Status
from octavo.scheduler.tally import Tally
from octavo.scheduler.updates import SequenceUpdate, update_of


class Scheduler:
    """Plans steps by iteration-level scheduling (Orca, OSDI 2022) in which every sequence has tokens to catch up with.

    `schedule` makes a plan, then `commit` takes its result or `drop` forgets it; one plan is out at a time.  `add`, `abort` and
    `finish` may come at any moment.  A dropped plan leaves no trace with the runner: what it started, released, copied and appended to
    block tables is handed out again by the next plan.

    One order rules all: priority (lower first), then arrival.  Running sequences go first; each that generates advances in every step.
    When memory is short the youngest yields and is computed again later, so the oldest always progresses and everything ends.

    cache_key: of this engine, for the default tenant; a request's own is made from it once.
    max_num_seqs: sequences that run at once (never more than max_num_batched_tokens, since each may need a token in every step).
    max_num_batched_tokens: rows computed in one step.
    batching: "continuous", or "static": a batch is taken, and the next one only when all of it has ended; until then ended
        members keep their memory (FasterTransformer as in SOSP 2023, PagedAttention, section 6.1), and nobody follows anybody.
    target_step_seconds: see ChunkBudget.  max_overtakes: see Admission.
    copy_seconds: what copying one block takes, so that no head of a block is copied that is computed faster.
    Raises ConfigError for a setting that can't be.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        cache_key: CacheKey = CacheKey(),  # noqa: B008 - a frozen value
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        batching: str = "continuous",
        target_step_seconds: float = 0.1,
        copy_seconds: float = 0.0,
        max_overtakes: int = MAX_OVERTAKES,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ConfigError(f"{max_num_seqs=} and {max_num_batched_tokens=} must both be at least 1")
        if batching not in ("continuous", "static"):
            raise ConfigError(f"batching={batching!r} is not one of continuous, static")
        self.cache_key = cache_key
        self.manager = self._manager = manager
        self._max_running = min(max_num_seqs, max_num_batched_tokens)
        self._static = batching == "static"
        self._copy_seconds = copy_seconds
        self._chunk_budget = ChunkBudget(max_num_batched_tokens, target_step_seconds)
        self._forecast = Forecast(releases_at_end=not self._static)
        self._population = Population(manager, keeps_ended=self._static)
        self._running, self._waiting = self._population.running, self._population.waiting
        self._tally = Tally()
        self._followers = Followers(manager, enabled=not self._static)
        self._admission = Admission(
            manager, self._forecast, self._followers, self._population.roster, self._tally, max_overtakes=max_overtakes
        )
        self._unservable: list[SequenceUpdate] = []
        self._in_flight: StepPlan | None = None
        self._step = 0
        self._clock = 0.0  # of the step results, in seconds

    # Requests come and go.

    @property
    def has_work(self) -> bool:
        return bool(len(self._population.roster) or self._unservable)

    def request_ids(self) -> list[str]:
        """The requests that have not ended."""
        return self._population.roster.request_ids()

    def max_tokens_that_fit(self, prompt_len: int) -> int:
        """The largest max_tokens with which such a prompt can ever run; 0 when the prompt alone can't."""
        return max_tokens_that_fit(self._manager, prompt_len)

    def refuse_reason(self, request: Request) -> str | None:
        """Why `request` can never run here, with numbers and remedy; None when it can."""
        return refuse_reason(self._manager, request, self._max_running)

    def add(self, request: Request) -> list[int]:
        """Queue `request` as `params.num_samples` sequences, or one that becomes its beams: their ids, by sample index.

        Raises InvalidRequestError, and queues nothing, for what can never run and for an id that is in use.
        """
        if (reason := self.refuse_reason(request)) is not None:
            raise InvalidRequestError(reason)
        self._population.roster.refuse_taken(request.request_id)
        key = self._key_of(request)
        count = 1 if request.beam is not None else request.params.num_samples
        first = self._population.next_seq_id
        sequences = [Sequence.of(request, key, first, first + index, index) for index in range(count)]
        begin_beams(request, sequences[0])
        self._population.add(sequences)
        return [sequence.seq_id for sequence in sequences]

    def abort(self, request_id: str) -> bool:
        """End all sequences of a request, wherever they are, and free their memory.  False when there is no such request."""
        sequences = self._population.roster.of_request(request_id)
        for sequence in sequences:
            self._population.end(sequence, "abort")
        return bool(sequences)

    def finish(self, seq_id: int, reason: FinishReason, stop_reason: str | int | None = None) -> SequenceUpdate | None:
        """End one sequence for a cause unseen here (a stop string): its last update; None when it has ended already."""
        sequence = self._population.roster.get(seq_id)
        if sequence is None:
            return None
        if reason == "stop":
            self._end_by_itself(sequence, reason)
        else:
            self._population.end(sequence, reason)
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
        # Whoever just yielded would be the first to enter again: it waits for the next step, unless this one has nothing else to do.
        if not draft.chunks or not (memory_was_short or self._static):
            self._admit(draft)
        self._step += 1
        released = tuple(self._population.released)
        plan = StepPlan(step=self._step, released=released, started=tuple(draft.started), chunks=tuple(draft.chunks))
        self._in_flight = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take what the step produced: the updates of those sequences to which it brought something."""
        self._land(plan)
        population = self._population
        del population.released[: len(plan.released)]
        for start in plan.started:
            if (sequence := population.roster.get(start.seq_id)) is not None:
                sequence.is_known = True
            else:  # it was aborted meanwhile
                population.released.append(start.seq_id)
        updates, self._unservable = self._unservable, []
        streams = prompt_tokens = 0
        for chunk in plan.chunks:
            num_tokens = len(chunk.tokens)
            if num_tokens == 1:
                streams += 1
            else:
                prompt_tokens += num_tokens
            sequence = population.roster.get(chunk.seq_id)
            if sequence is not None:
                updates += self._take(sequence, chunk, result)
        self._clock += result.elapsed
        self._tally.tokens_computed += streams + prompt_tokens
        self._tally.blocks_copied += len(plan.copies)
        self._tally.observe_sharing(*self._manager.sharing)
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
        tally = self._tally
        return EngineStats(
            **asdict(self._manager.stats()),
            waiting=len(self._waiting),
            following=sum(1 for sequence in self._waiting if sequence.status is Status.FOLLOWING),
            running=len(self._running),
            steps=self._step,
            preemptions=tally.preemptions,
            overtakes=self._admission.overtakes,
            tokens_computed=tally.tokens_computed,
            tokens_recomputed=tally.tokens_recomputed,
            tokens_cached=tally.tokens_cached,
            prompt_tokens=tally.prompt_tokens,
            prompt_tokens_cached=tally.prompt_tokens_cached,
            tokens_forked=tally.tokens_forked,
            sharing_mean=tally.sharing_mean,
            sharing_steps=tally.sharing_steps,
            blocks_copied=tally.blocks_copied,
            output_share=self._forecast.output_share,
            prefill_speed=self._chunk_budget.prefill_speed,
        )

    def check(self) -> None:
        """Raise InvariantError when queues, leases and memory contradict each other.  O(blocks + sequences)."""
        self._manager.check()
        self._population.check()

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
            lease = lease_of(sequence)
            while (end > lease.room or lease.shares_tail) and not self._manager.grow(lease, end):
                short = True
                self._preempt_youngest()
                if not lease.is_open:  # it was itself the youngest
                    return True
            draft.add(sequence, end, lease)
        return short

    def _admit(self, draft: Draft) -> None:
        if not self._running:
            self._population.release_kept()
        if not self._waiting or draft.budget < 1:
            return
        entered: list[Sequence] = []
        budget = draft.budget
        self._manager.copy_worth = max(1, ceil(self._copy_seconds * self._chunk_budget.prefill_speed))
        self._followers.survey(self._running, self._clock, self._chunk_budget.prompt_rate)
        for sequence in self._admission.entering(self._waiting, self._running, self._free_slots()):
            self._tally.tokens_cached += sequence.num_computed
            entered.append(sequence)
            budget -= len(sequence.tokens) - sequence.num_computed
            if budget < 1 and not self._static:  # a static batch is taken whole, and computed as the budget allows
                break
        for sequence in entered:
            self._population.enter(sequence)
            end = sequence.next_stop(draft.budget)
            lease = lease_of(sequence)
            if end > sequence.num_computed and self._manager.grow(lease, end):
                draft.budget -= end - sequence.num_computed
                draft.add(sequence, end, lease)
        if not self._running and self._waiting:
            self._give_up(self._waiting.head)

    def _free_slots(self) -> int:
        """Sequences that may still enter.  A beam search that runs keeps a slot for each of its beams."""
        groups = {sequence.beams for sequence in self._running if sequence.beams is not None}
        return self._max_running - len(self._running) - sum(group.width - group.num_running for group in groups)

    def _preempt_youngest(self) -> None:
        self._population.preempt_youngest()
        self._tally.preemptions += 1
        self._forecast.observe_shortage()

    def _give_up(self, sequence: Sequence) -> None:
        """Nothing runs and it still does not fit: the pool has shrunk since it was queued.  It is answered, not kept waiting."""
        reason = self.refuse_reason(sequence.request) or (
            f"{len(sequence.tokens)} tokens don't fit {self._manager.num_available} available blocks of {self._manager.block_size}; "
            "raise num_blocks or kv_cache_memory_bytes"
        )
        self._unservable += self._fail(sequence, reason)

    # What a result brings.

    def _land(self, plan: StepPlan) -> None:
        if self._in_flight is None or self._in_flight.step != plan.step:
            raise InvariantError(
                f"step {plan.step} came back, but {'no step' if self._in_flight is None else self._in_flight.step} is out"
            )
        self._in_flight = None

    def _take(self, sequence: Sequence, chunk: Chunk, result: StepResult) -> list[SequenceUpdate]:
        seq_id = sequence.seq_id
        sample = result.samples.get(seq_id) if chunk.sample else None
        rows = result.prompt_logprobs.get(seq_id, ()) if chunk.prompt_rows else ()
        error = result.failed.get(seq_id)
        if error is None and ((chunk.sample and sample is None) or len(rows) != chunk.prompt_rows):
            error = f"the runner gave {len(rows)} of {chunk.prompt_rows} prompt logprobs and the sample {sample} for sequence {seq_id}"
        if error is not None:
            return self._fail(sequence, error)

        self._count_computed(sequence, chunk)
        if chunk.prompt_rows:
            sequence.num_prompt_rows_done = chunk.start + chunk.prompt_rows
        if sample is None:
            return [update_of(sequence, prompt_logprobs=tuple(rows))] if rows else []
        if sequence.beams is not None:
            everybody_is_there = sequence.beams.take(sequence, sample.logprobs)
            return sequence.beams.advance(self._population) if everybody_is_there else []

        sequence.tokens.append(sample.token_id)
        reason, stop_reason = self._ending(sequence, sample.token_id)
        if reason is not None:
            self._end_by_itself(sequence, reason)
        return [
            SequenceUpdate(
                seq_id=seq_id,
                request_id=sequence.request.request_id,
                sample_index=sequence.sample_index,
                token_id=sample.token_id,
                logprobs=sample.logprobs,
                prompt_logprobs=tuple(rows),
                cache=sequence.cache,
                finish_reason=reason,
                stop_reason=stop_reason,
            )
        ]

    def _count_computed(self, sequence: Sequence, chunk: Chunk) -> None:
        lease, end = lease_of(sequence), chunk.start + len(chunk.tokens)
        lease.changed_from = len(lease.blocks)
        self._manager.commit(lease, sequence.tokens, end)
        sequence.num_computed = end
        if chunk.start < sequence.num_computed_before:
            self._tally.tokens_recomputed += min(end, sequence.num_computed_before) - chunk.start

    def _ending(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        request = sequence.request
        generated = len(sequence.tokens) - sequence.prompt_len
        if token in request.stop_token_ids and generated > request.params.min_tokens:
            named_by_caller = token in (request.params.stop_token_ids or ())
            return "stop", token if named_by_caller else None
        return ("length", None) if generated >= request.max_tokens else (None, None)

    def _end_by_itself(self, sequence: Sequence, reason: FinishReason) -> None:
        self._forecast.observe_end(sequence.num_generated, sequence.request.max_tokens)
        heir = self._population.hand_on(sequence)
        if heir is not None and heir.cache is not None:
            self._tally.observe_first_admission(heir.prompt_len, heir.cache)
        self._population.end(sequence, reason)

    def _fail(self, sequence: Sequence, error: str) -> list[SequenceUpdate]:
        """End `sequence` with an error; as a beam, all of its search: one update for each result that was wanted."""
        indexes = [sequence.sample_index] if sequence.beams is None else range(sequence.request.params.n)
        if sequence.beams is None:
            self._population.end(sequence, "error")
        else:
            sequence.beams.end(self._population)
        return [replace(update_of(sequence, finish_reason="error", error=error), sample_index=index) for index in indexes]

    def _key_of(self, request: Request) -> CacheKey:
        tenants = TenantNamespace(request.tenant, request.cache_salt)
        namespace = tenants if request.published is None else PublishedNamespace(request.published)
        template = self.cache_key.chat_template if request.chat_template is None else request.chat_template
        return replace(self.cache_key, namespace=namespace, chat_template=template)
