"""`Sampler`: chooses each sequence's next token from its row of logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from octavo.core.plan import Sample, SequenceStart, TokenLogprobs
from octavo.kernels.sampling_ops import NO_TOKEN, Draw, SamplingOps
from octavo.sampling.constraints import Constraints
from octavo.sampling.penalties import SeenTokens, has_penalties
from octavo.sampling.philox import uniform


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's choices: every sequence is in exactly one of the two, which are `StepResult.samples` and `.failed`."""

    samples: dict[int, Sample] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Keeps what sampling must remember of each running sequence, and draws.

    A row's result depends on that row and its own sequence alone (law 1): rows are handled one by one, or by operations of `ops`
    that promise the same.  The order of the steps is vLLM's: raw logprobs; allowed ids, bad words, min_tokens; bias; penalties;
    then, unless greedy, temperature, min_p, top_k, top_p and the draw.
    """

    def __init__(self, vocab_size: int, ops: SamplingOps) -> None:
        """vocab_size: the width of the model's head, in logits."""
        self._vocab_size = vocab_size
        self._ops = ops
        self._sequences: dict[int, _Sequence] = {}

    def start(self, start: SequenceStart) -> None:
        """Remember a sequence that enters the running set; a known `seq_id` is replaced."""
        self._sequences[start.seq_id] = _Sequence(start, self._vocab_size)

    def release(self, seq_id: int) -> None:
        """Forget a sequence.  One that isn't known is ignored: a release may be repeated."""
        self._sequences.pop(seq_id, None)

    def sample(self, seq_ids: Sequence[int], logits: torch.Tensor) -> Sampled:
        """Choose a token for each of `seq_ids` from the row of `logits` (float32 [len(seq_ids), vocab]) at its place.

        Neither the sequences' states nor `logits` change: `record` adds what a step chose once the step has succeeded.  A row from
        which nothing can be chosen (a NaN, or everything masked) fails its own sequence.  KeyError: a sequence was never started.
        """
        sequences = [self._sequences[seq_id] for seq_id in seq_ids]
        sampled = Sampled()
        # One pass over all rows: the choice of every plain greedy row, and the proof that the others hold numbers.
        likeliest: list[int] = self._ops.argmax_rows(logits).tolist()
        for i, token in enumerate(self._choose(sequences, logits, likeliest)):
            seq_id, sequence = seq_ids[i], sequences[i]
            if likeliest[i] == NO_TOKEN:
                sampled.failed[seq_id] = f"the model's logits for output token {len(sequence.output)} hold a NaN or no finite maximum"
                continue
            if token == NO_TOKEN:
                sampled.failed[seq_id] = sequence.nothing_left()
                continue
            k = sequence.params.num_logprobs
            logprobs = None if k is None else self._logprobs(logits[i], token, k)
            sampled.samples[seq_id] = Sample(token, logprobs)
        return sampled

    def record(self, samples: Mapping[int, Sample]) -> None:
        """Add each chosen token to its sequence's state: the next draw is for the position after it.  Mutates."""
        for seq_id, sample in samples.items():
            self._sequences[seq_id].append(sample.token_id)

    def prompt_logprobs(self, logits: torch.Tensor, targets: Sequence[int], k: int) -> list[TokenLogprobs]:
        """How likely the model found the prompt: for each row of `logits` (float32 [rows, vocab]) the log-probability and rank of
        the prompt token in `targets` that follows it, and its `k` likeliest tokens.
        """
        return [self._logprobs(row, token, k) for row, token in zip(logits, targets, strict=True)]

    def _choose(self, sequences: "Sequence[_Sequence]", logits: torch.Tensor, likeliest: Sequence[int]) -> list[int]:
        """Each row's token; `likeliest` are the raw rows' argmax.  NO_TOKEN where nothing can be chosen."""
        tokens = list(likeliest)
        drawing = []
        for i, sequence in enumerate(sequences):
            if sequence.plain or tokens[i] == NO_TOKEN:
                continue
            if not sequence.edits:
                drawing.append(i)
                continue
            row = sequence.edited(logits[i])  # a copy, so these go one by one
            if sequence.params.greedy:
                tokens[i] = int(self._ops.argmax_rows(row.unsqueeze(0))[0])
            else:
                (tokens[i],) = self._ops.draw_rows([row], [sequence.next_draw()])
        if drawing:
            drawn = self._ops.draw_rows([logits[i] for i in drawing], [sequences[i].next_draw() for i in drawing])
            for i, token in zip(drawing, drawn, strict=True):
                tokens[i] = token
        return tokens

    def _logprobs(self, row: torch.Tensor, token: int, k: int) -> TokenLogprobs:
        found = self._ops.top_logprobs_row(row, k, token)
        return TokenLogprobs(token, found.logprob, found.rank, tuple(zip(found.top_ids, found.top_logprobs, strict=True)))


class _Sequence:
    """What the sampler remembers of one sequence.

    edits: whether its logits are changed before the choice.  plain: greedy without edits, so the raw argmax is the choice.
    """

    __slots__ = ("_constraints", "_seen", "edits", "output", "params", "plain", "sample_index", "seed")

    def __init__(self, start: SequenceStart, vocab_size: int) -> None:
        self.params = start.params
        self.seed = start.seed
        self.sample_index = start.sample_index
        self.output: list[int] = []
        self._constraints = Constraints(start, vocab_size)
        self._seen: SeenTokens | None = None
        if has_penalties(start.params):
            counts_prompt = start.params.repetition_penalty != 1.0
            self._seen = SeenTokens(start.tokens[: start.prompt_len] if counts_prompt else ())
        for token in start.tokens[start.prompt_len :]:
            self.append(token)
        self.edits = self._seen is not None or not self._constraints.empty
        self.plain = self.params.greedy and not self.edits

    def append(self, token: int) -> None:
        self.output.append(token)
        if self._seen is not None:
            self._seen.add(token)

    def edited(self, row: torch.Tensor) -> torch.Tensor:
        """A copy of `row` after masks, bias and penalties."""
        row = row.clone()
        self._constraints.apply(row, self.output)
        if self._seen is not None:
            self._seen.penalise(row, self.params)
        return row

    def next_draw(self) -> Draw:
        params = self.params
        u = uniform(self.seed, self.sample_index, len(self.output))
        return Draw(params.temperature, params.top_k, params.top_p, params.min_p, u)

    def nothing_left(self) -> str:
        return (
            f"no token may be chosen as output token {len(self.output)}: allowed_token_ids, bad_words and "
            f"min_tokens={self.params.min_tokens} together mask the whole vocabulary; loosen one of them"
        )
