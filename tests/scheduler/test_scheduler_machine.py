"""A state machine over the scheduler with a runner that computes nothing: small pools, and everything that can happen at random."""

from driving import assert_drained, assert_forgotten, make_beam_request, make_request, make_scheduler
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from null_runner import NullRunner, candidates_after, token_at
from plain_index import PlainIndex

from octavo.core.request import Request
from octavo.scheduler.beams import BeamSearch, Hypothesis


class SchedulerMachine(RuleBasedStateMachine):
    """Streams are compared with what each request gives alone: tokens depend on (seed, sample, position) only."""

    layouts = ("paged",)
    batchings = ("continuous",)

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        self.block_size = data.draw(st.sampled_from([1, 2, 4]))
        layout = data.draw(st.sampled_from(self.layouts))
        num_blocks = data.draw(st.integers(4, 40))
        self.room = num_blocks * self.block_size
        self.scheduler = make_scheduler(
            num_blocks,
            self.block_size,
            kv_layout=layout,
            reserve=data.draw(st.sampled_from(["max", "pow2", "oracle"])) if layout == "reserved" else "max",
            max_model_len=max(4, num_blocks // 3) * self.block_size,
            max_num_seqs=data.draw(st.sampled_from([2, 5, 64])),
            max_num_batched_tokens=data.draw(st.sampled_from([1, 3, 8, 64, 64])),
            batching=data.draw(st.sampled_from(self.batchings)),
            prefix_index=data.draw(st.sampled_from([None, "hash", "radix", PlainIndex(self.block_size)])),
        )
        # The less is expected, the more often memory runs short.
        self.scheduler._forecast.output_share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
        self.runner = NullRunner(self.block_size)
        self.requests: dict[str, Request] = {}
        self.streams: dict[tuple[str, int], list[int]] = {}
        self.scores: dict[tuple[str, int], list[int]] = {}
        self.open: dict[tuple[str, int], int] = {}  # -> sequence id
        self.ended: set[tuple[str, int]] = set()
        self.found: dict[str, tuple[Hypothesis, ...]] = {}
        self.failing: set[int] = set()

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 70)), min_size=1, max_size=5),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        n=st.sampled_from([1, 1, 1, 3]),
        scored=st.sampled_from([None, None, 0]),
        topic=st.integers(0, 2),
    )
    def arrive(self, sizes: list[tuple[int, int]], priority: int, n: int, scored: int | None, topic: int) -> None:
        """Requests of so many hundredths of the pool: (prompt, output)."""
        for prompt_share, output_share in sizes:
            prompt_len, max_tokens = 1 + self.room * prompt_share // 100, 1 + self.room * output_share // 100
            seed = len(self.requests)
            request = make_request(
                f"r{seed}", prompt_len, max_tokens, seed=seed, topic=topic, priority=priority, n=n, prompt_logprobs=scored
            )
            reason = self.scheduler.refuse_reason(request)
            assert (reason is None) == (max_tokens <= self.scheduler.max_tokens_that_fit(prompt_len))
            if reason is not None:
                assert str(prompt_len) in reason and "num_blocks" in reason
                continue
            self.requests[request.request_id] = request
            for sample, seq_id in enumerate(self.scheduler.add(request)):
                self.open[request.request_id, sample] = seq_id

    @rule(
        prompt_share=st.integers(1, 40),
        output_share=st.integers(1, 40),
        width=st.integers(1, 4),
        topic=st.integers(0, 2),
        priority=st.sampled_from([0, 0, -1]),
        stops=st.booleans(),
    )
    def search(self, prompt_share: int, output_share: int, width: int, topic: int, priority: int, stops: bool) -> None:
        """A beam search."""
        prompt_len, max_tokens = 1 + self.room * prompt_share // 100, 1 + self.room * output_share // 100
        ends = range(0, 997, 4) if stops else ()
        name = f"b{len(self.requests)}"
        request = make_beam_request(name, prompt_len, max_tokens, width, topic=topic, priority=priority, stop_token_ids=ends)
        if self.scheduler.refuse_reason(request) is None:
            self.requests[request.request_id] = request
            (seq_id,) = self.scheduler.add(request)
            self.open |= {(request.request_id, index): seq_id for index in range(width)}

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self.open})))
        assert self.scheduler.abort(name)
        assert not self.scheduler.abort(name)
        for key in [key for key in self.open if key[0] == name]:
            del self.open[key]
            self.ended.add(key)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def find_stop_string(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        if self.requests[key[0]].beam is not None:
            return
        update = self.scheduler.finish(self.open[key], "stop", "end")
        assert update is not None and update.stop_reason == "end"
        assert self.scheduler.finish(self.open.pop(key), "stop") is None
        self.ended.add(key)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def break_one(self, data: st.DataObject) -> None:
        if len(self.failing) < 2:
            self.failing.add(data.draw(st.sampled_from(sorted(self.open.values()))))
            self.runner.failing = self.failing

    @rule(count=st.integers(1, 8))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule()
    def drop(self) -> None:
        plan = self.scheduler.schedule()
        self.scheduler.check()
        self.scheduler.drop(plan)

    @rule(data=st.data())
    def abort_while_a_step_is_out(self, data: st.DataObject) -> None:
        plan = self.scheduler.schedule()
        if self.open:
            self.abort(data)
        self.take(self.scheduler.commit(plan, self.runner.execute(plan)))

    def step(self) -> None:
        streams = [s for s in self.scheduler._running if s.num_behind == 1]
        oldest = self.scheduler._running[0] if self.scheduler._running else None
        before = oldest.num_computed if oldest else 0
        inside = {sequence.seq_id for sequence in self.scheduler._running}
        plan = self.scheduler.schedule()
        self.scheduler.check()
        if {sequence.seq_id for sequence in self.scheduler._running} - inside:
            self.check_promises()
        served = {chunk.seq_id for chunk in plan.chunks}
        assert plan.num_tokens <= self.scheduler._chunk_budget._max_tokens
        for sequence in streams:  # every step that has streams serves all of them, or takes their memory
            assert sequence.seq_id in served or sequence.lease is None
        self.take(self.scheduler.commit(plan, self.runner.execute(plan)))
        if oldest is not None and oldest.lease is not None and oldest.beams is None:
            assert oldest.num_computed > before, "the oldest made no progress"
        assert plan.chunks or not self.open

    def check_promises(self) -> None:
        """Whoever entered leaves enough for all tokens that the running ones have: prompts never lock each other out."""
        manager = self.scheduler._manager
        promised = sum(
            max(0, manager.blocks_for(len(s.tokens)) - len(s.lease.blocks)) for s in self.scheduler._running if s.lease is not None
        )
        assert promised <= manager.num_available

    def take(self, updates: list) -> None:
        for update in updates:
            key = (update.request_id, update.sample_index)
            assert key in self.open, f"{key} has ended, but got {update}"
            self.scores.setdefault(key, []).extend(score.token_id for score in update.prompt_logprobs)
            if update.token_id is not None:
                self.streams.setdefault(key, []).append(update.token_id)
            if update.hypothesis is not None:
                assert update.hypothesis == self.searched(key[0])[key[1]]
            elif update.finish_reason == "error":
                assert update.error == "made to fail" and (self.open[key] in self.failing or self.requests[key[0]].beam)
            elif update.finish_reason is not None:
                assert update.finish_reason == "length"
                assert len(self.streams[key]) == self.requests[key[0]].max_tokens
            if update.finish_reason is not None:
                del self.open[key]
                self.ended.add(key)

    def searched(self, name: str) -> tuple[Hypothesis, ...]:
        """What the beam search of a request comes to, alone."""
        request = self.requests[name]
        if name not in self.found:
            search = BeamSearch(request.beam, request.max_tokens, request.stop_token_ids)
            while not search.is_over:
                prompts = [[*request.prompt_token_ids, *beam.token_ids] for beam in search.beams]
                search = search.advance([candidates_after(tokens, search.candidates_per_beam) for tokens in prompts])
            self.found[name] = search.results
        return self.found[name]

    @invariant()
    def lawful(self) -> None:
        self.scheduler.check()
        stats = self.scheduler.stats()
        beams = sum(1 for sequence in self.scheduler._population.roster if sequence.beams is not None)
        assert sum(1 for name, _ in self.open if self.requests[name].beam is None) == stats.waiting + stats.running - beams
        assert stats.running <= self.scheduler._max_running
        if self.scheduler._static:
            assert stats.preemptions == 0, "a static batch is taken so that all of it fits to its end"
        for (name, sample), tokens in self.streams.items():
            request = self.requests[name]
            start = len(request.prompt_token_ids)
            assert tokens == [token_at(request.seed, sample, start + i) for i in range(len(tokens))]
        for (name, _), scored in self.scores.items():
            assert scored == list(self.requests[name].prompt_token_ids[1 : 1 + len(scored)])

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        work = sum((len(r.prompt_token_ids) + r.max_tokens) * (r.beam.beam_width if r.beam else 1) for r in self.requests.values()) * 3
        for _ in range(50 + 20 * work):
            if not self.scheduler.has_work:
                break
            self.step()
        assert_drained(self.scheduler)
        assert_forgotten(self.scheduler, self.runner)
        assert not self.open
        for key, tokens in self.streams.items():
            request = self.requests[key[0]]
            if len(tokens) == request.max_tokens and request.params.prompt_logprobs is not None:
                assert len(self.scores[key]) == (0 if key[1] else len(request.prompt_token_ids) - 1)


class BaselineMachine(SchedulerMachine):
    layouts = ("paged", "reserved")
    batchings = ("static", "continuous")


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
BaselineMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestScheduler = SchedulerMachine.TestCase
TestBaselines = BaselineMachine.TestCase
