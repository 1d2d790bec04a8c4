"""`BestOf`: draws more samples than are returned, and gives the best once all have ended."""

from dataclasses import dataclass, field, replace

from octavo.core.outputs import CompletionOutput
from octavo.core.plan import TokenLogprobs


@dataclass(slots=True)
class _Sample:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: CompletionOutput | None = None

    @property
    def cumulative_logprob(self) -> float:
        return sum(entry.logprob for entry in self.logprobs)


class BestOf:
    """Holds the deltas of `num_samples` samples back.

    reports_logprobs: whether the caller asked for logprobs, which ranking needs in any case.
    """

    def __init__(self, num_samples: int, num_returned: int, reports_logprobs: bool) -> None:
        self._samples = [_Sample() for _ in range(num_samples)]
        self._num_returned = num_returned
        self._reports_logprobs = reports_logprobs

    def add(self, delta: CompletionOutput) -> None:
        """Take one sample's delta in.  Mutates."""
        sample = self._samples[delta.index]
        sample.text.append(delta.text)
        sample.token_ids.extend(delta.token_ids)
        sample.logprobs.extend(delta.logprobs or ())
        sample.last = delta

    def ranked(self) -> list[CompletionOutput]:
        """The best by the sum of logprobs, as whole outputs numbered by rank.

        Equal ones stand in the order of the draw, failed ones last.
        """
        ended = [(sample, sample.last) for sample in self._samples if sample.last is not None]
        ended.sort(key=lambda pair: (pair[1].finish_reason == "error", -pair[0].cumulative_logprob))
        return [
            replace(
                last,
                index=rank,
                text="".join(sample.text),
                token_ids=tuple(sample.token_ids),
                logprobs=tuple(sample.logprobs) if self._reports_logprobs else None,
                cumulative_logprob=sample.cumulative_logprob,
            )
            for rank, (sample, last) in enumerate(ended[: self._num_returned])
        ]
