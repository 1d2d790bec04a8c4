"""Law 4: whatever fails is a state of one request; the others are answered, memory comes home, nothing hangs."""

import random

import pytest
from engine_models import start

from octavo import SamplingParams
from octavo.core.errors import InvalidRequestError

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, seed=0)
PROMPTS = [[5 + i] * (3 + i) for i in range(6)]


def drained(llm):
    llm.check()
    stats = llm.stats()
    home = stats.blocks_free + stats.blocks_cached == stats.blocks_total
    return not llm.engine.has_work and home and stats.running == stats.waiting == 0


def enqueue(llm, prompts, params=PARAMS):
    requests = llm.inputs.requests(prompts, [params] * len(prompts), [{}] * len(prompts))
    for request in requests:
        llm.engine.add_request(request)
    return [request.request_id for request in requests]


class FailsOn:
    """Raises for every plan that holds the sequence of this prompt length; does the others."""

    def __init__(self, runner, prompt_len):
        self._runner, self._prompt_len = runner, prompt_len
        self._bad = set()

    def execute(self, plan):
        self._bad |= {start.seq_id for start in plan.started if start.prompt_len == self._prompt_len}
        if any(chunk.seq_id in self._bad for chunk in plan.chunks):
            raise MemoryError("no workspace of 1234 bytes")
        return self._runner.execute(plan)

    def seconds(self):
        return self._runner.seconds()


def test_a_step_that_fails_is_halved_until_only_the_culprit_fails():
    with start() as llm:
        expected = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        llm.engine.runner = FailsOn(llm.engine.runner, len(PROMPTS[3]))
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        for index, (output, good) in enumerate(zip(outputs, expected, strict=True)):
            if index == 3:
                assert output.outputs[0].finish_reason == "error"
                assert "no workspace of 1234 bytes" in (output.outputs[0].error or "")
            else:
                assert output.outputs == good.outputs
        assert drained(llm)


def test_logits_that_are_no_numbers_fail_their_request_alone():
    with start() as llm:
        expected = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        executor, logits = llm.engine.runner.executor, llm.engine.runner.executor.logits

        class Spoiled:
            def __getattr__(self, name):
                return getattr(executor, name)

            def logits(self, rows):
                values = logits(rows)
                if len(rows) == len(PROMPTS):
                    values[2, 100] = float("nan")
                return values

        llm.engine.runner.executor = Spoiled()
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length", "error", "length", "length", "length"]
        assert "NaN" in (outputs[2].outputs[0].error or "")
        assert [o.outputs for i, o in enumerate(outputs) if i != 2] == [o.outputs for i, o in enumerate(expected) if i != 2]
        assert drained(llm)


def test_an_interrupt_leaves_nothing_behind():
    class Interrupts:
        def __init__(self, runner):
            self._runner, self.left = runner, 3

        def execute(self, plan):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return self._runner.execute(plan)

    with start() as llm:
        expected = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        runner = llm.engine.runner
        llm.engine.runner = Interrupts(runner)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        llm.engine.runner = runner
        assert drained(llm)
        assert [o.outputs for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)] == [o.outputs for o in expected]


def test_k02_04_abort_and_last_token_in_the_same_step_free_once():
    with start(num_blocks=12) as llm:
        rng = random.Random(3)
        for _ in range(100):
            ids = enqueue(llm, PROMPTS, SamplingParams(temperature=0, max_tokens=rng.randint(1, 4), ignore_eos=True))
            while llm.engine.has_work:
                llm.engine.step()
                if rng.random() < 0.5:
                    llm.engine.abort(rng.choice(ids))
                llm.check()
        assert drained(llm)


def test_k02_02_blocks_return_to_the_baseline_after_every_round():
    with start(num_blocks=200) as llm:
        rng = random.Random(4)
        for _ in range(6):
            prompts = [[7] * (16 * rng.randint(1, 4) + rng.randint(-1, 1)) for _ in range(20)]
            params = [
                SamplingParams(temperature=1.0, seed=i, max_tokens=rng.choice([1, 15, 16, 17]), stop=["a", "b"]) for i in range(20)
            ]
            llm.generate(prompts, params, use_tqdm=False)
            assert drained(llm)


def test_k02_06_aborting_a_queued_request_leaves_the_running_one_alone():
    with start(max_num_seqs=1) as llm:
        alone = llm.generate([PROMPTS[0]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids
        for when in range(10):
            running, queued = enqueue(llm, PROMPTS[:2])
            tokens = []
            for step in range(100):
                if step == when:
                    assert llm.engine.abort(queued)
                    assert not llm.engine.abort(queued)
                for output in llm.engine.step():
                    assert output.request_id == running
                    tokens.extend(output.outputs[0].token_ids)
                if not llm.engine.has_work:
                    break
            assert tuple(tokens) == alone
            assert drained(llm)


def test_k03_02_rounds_that_cannot_fit_are_refused_and_the_next_is_served():
    with start(num_blocks=49) as llm:
        short, long = [[5] * 5] * 10, [[6] * 1000] * 5
        params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
        assert len(llm.generate(short, params, use_tqdm=False)) == 10
        with pytest.raises(InvalidRequestError, match=r"prompt 0: .*1000 tokens.*784"):
            llm.generate(long, params, use_tqdm=False)
        assert len(llm.generate(short, params, use_tqdm=False)) == 10
        assert drained(llm)


def test_k03_03_thrash_is_bounded_and_the_oldest_always_progresses():
    with start(num_blocks=96, max_num_seqs=16) as llm:  # three full requests
        outputs = llm.generate(
            [[9 + i] * 100 for i in range(16)], SamplingParams(max_tokens=400, ignore_eos=True, seed=1), use_tqdm=False
        )
        assert all(len(output.outputs[0].token_ids) == 400 for output in outputs)
        assert llm.stats().tokens_computed <= 4 * 16 * 500
        assert drained(llm)


def test_k03_04_four_chats_that_outgrow_the_pool_all_end_as_alone():
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, seed=0)
    prompts = [[20 + i] * 77 for i in range(4)]
    with start() as llm:
        expected = [llm.generate([prompt], params, use_tqdm=False)[0].outputs for prompt in prompts]
    with start(num_blocks=18) as llm:
        assert [output.outputs for output in llm.generate(prompts, params, use_tqdm=False)] == expected
        assert drained(llm)


def test_k04_01_running_streams_advance_in_every_step_while_prompts_arrive():
    with start(num_blocks=2000, max_num_batched_tokens=128) as llm:
        [stream] = enqueue(llm, [[5]], SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
        llm.engine.step()
        for step in range(99):
            if step % 3 == 0:
                enqueue(llm, [[7] * 500], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
            assert stream in {output.request_id for output in llm.engine.step()}
        while llm.engine.has_work:
            llm.engine.step()
        assert drained(llm)


@pytest.mark.parametrize("position", [1, 15, 16, 17, 40])
def test_k06_04_a_resumed_answer_joins_exactly(position):
    params = SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True, seed=7)
    with start() as llm:
        expected = llm.generate([[5] * 10], params, use_tqdm=False)[0].outputs[0]
        [request] = enqueue(llm, [[5] * 10], params)
        tokens, text = [], ""
        while llm.engine.has_work:
            if len(tokens) == position and not llm.stats().preemptions:
                scheduler = llm.engine.scheduler
                scheduler._preempt_youngest()
            for output in llm.engine.step():
                tokens.extend(output.outputs[0].token_ids)
                text += output.outputs[0].text
        assert llm.stats().preemptions == 1
        assert (tuple(tokens), text) == (expected.token_ids, expected.text)
        assert request
