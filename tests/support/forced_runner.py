"""A runner that computes nothing and answers with given tokens: texts and stops can be tested exactly."""

from collections.abc import Sequence

from octavo.core.plan import Sample, StepPlan, StepResult


class ForcedRunner:
    """Sequence after sequence, in the order of their ids, answers with the next of `answers`; beyond its end with token 2."""

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers = list(answers)
        self._starts: dict[int, tuple[int, Sequence[int]]] = {}
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        for start in plan.started:
            if start.seq_id not in self._starts:
                self._starts[start.seq_id] = (start.prompt_len, self._answers[len(self._starts) % len(self._answers)])
        samples = {}
        for chunk in plan.chunks:
            if chunk.sample:
                prompt_len, answer = self._starts[chunk.seq_id]
                index = chunk.start + len(chunk.tokens) - prompt_len
                samples[chunk.seq_id] = Sample(answer[index] if index < len(answer) else 2)
        return StepResult(samples, 0.001)

    def seconds(self) -> dict[str, float]:
        return {}
