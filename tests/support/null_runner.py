"""`NullRunner`: carries out plans without computing anything, and catches every contradiction in them.

It keeps what a real runner keeps (tokens, block tables, and in every place of every block the prefix whose K and V it holds), so a
scheduler that hands out a block twice, forgets one, skips a token, shares a wrong prefix or writes into a shared block fails here.
Its
tokens depend on (seed, sample index, position) alone, and a beam's candidates on its tokens: results must not depend on scheduling.
"""

from dataclasses import dataclass, field

from octavo.core.plan import Chunk, Sample, StepPlan, StepResult, TokenLogprobs


def token_at(seed: int, sample_index: int, position: int, vocab: int = 997) -> int:
    """The token that a sequence has at `position`, whatever happened before (a mixing function after Steele et al., SplitMix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + sample_index * 0xBF58476D1CE4E5B9 + position * 0x94D049BB133111EB + 1) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return (x ^ x >> 27) % vocab


def candidates_after(tokens: list[int], count: int, vocab: int = 997) -> tuple[tuple[int, float], ...]:
    """What a beam with `tokens` could go on with: `count` (token id, logprob) pairs, best first, a function of the tokens alone."""
    state = hash(tuple(tokens)) % 2**32
    ids = sorted(range(vocab), key=lambda token: (token_at(state, token, 0, 2**20), token))[:count]
    return tuple((token, -(0.5 + token_at(state, token, 1, 2**10) / 2**10 + rank)) for rank, token in enumerate(ids))


@dataclass
class Row:
    """What the runner knows of one sequence."""

    tokens: list[int]
    seed: int
    sample_index: int
    num_logprobs: int | None = None
    table: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)  # at each position: a digest of all tokens up to it

    def prefix(self, position: int) -> int:
        while len(self.prefixes) <= position:
            self.prefixes.append(hash((self.prefixes[-1] if self.prefixes else 0, self.tokens[len(self.prefixes)])))
        return self.prefixes[position]


class NullRunner:
    """execute(plan) -> StepResult, with a virtual clock: `step_seconds` a step and `token_seconds` a row.

    failing: sequence ids that can't be computed.  plans: those that were executed.
    Raises AssertionError for a plan that contradicts itself or an earlier one.
    """

    def __init__(self, block_size: int, step_seconds: float = 0.01, token_seconds: float = 0.001) -> None:
        self.block_size = block_size
        self.step_seconds = step_seconds
        self.token_seconds = token_seconds
        self.rows: dict[int, Row] = {}
        self.written: dict[int, list[int]] = {}  # block -> the prefixes that end at its places
        self.failing: set[int] = set()
        self.plans: list[StepPlan] = []
        self.num_copies = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for seq_id in plan.released:
            assert self.rows.pop(seq_id, None) is not None, f"released sequence {seq_id} is unknown"
        for start in plan.started:
            assert start.seq_id not in self.rows, f"sequence {start.seq_id} was started twice"
            self.rows[start.seq_id] = Row(list(start.tokens), start.seed, start.sample_index, start.params.num_logprobs)
        assert len({chunk.seq_id for chunk in plan.chunks}) == len(plan.chunks), "two chunks for one sequence"
        self._copy(plan.copies)
        for chunk in plan.chunks:
            self.rows[chunk.seq_id].table[chunk.first_block :] = chunk.new_blocks
        samples: dict[int, Sample] = {}
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for chunk in plan.chunks:
            row = self._compute(chunk)
            if chunk.prompt_rows:
                scored = range(chunk.start + 1, chunk.start + 1 + chunk.prompt_rows)
                prompt_logprobs[chunk.seq_id] = tuple(TokenLogprobs(row.tokens[p], -1.0 * p, 1) for p in scored)
            if chunk.sample and chunk.seq_id not in self.failing:
                token = token_at(row.seed, row.sample_index, len(row.tokens))
                likeliest = None
                if row.num_logprobs is not None:
                    likeliest = TokenLogprobs(token, -1.0, 1, candidates_after(row.tokens, row.num_logprobs))
                row.tokens.append(token)
                samples[chunk.seq_id] = Sample(token, likeliest)
        elapsed = self.step_seconds + self.token_seconds * plan.num_tokens
        failed = {chunk.seq_id: "made to fail" for chunk in plan.chunks if chunk.seq_id in self.failing}
        return StepResult(samples, elapsed, prompt_logprobs, failed)

    def _copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        destinations = [destination for _, destination in copies]
        assert len(set(destinations)) == len(destinations), f"two copies into one block: {copies}"
        assert not {source for source, _ in copies} & set(destinations), f"a block is copied and overwritten at once: {copies}"
        for source, destination in copies:
            self.written[destination] = list(self.written.get(source, []))
        self.num_copies += len(copies)

    def _compute(self, chunk: Chunk) -> Row:
        row = self.rows[chunk.seq_id]
        end = chunk.start + len(chunk.tokens)
        assert chunk.tokens, f"an empty chunk for sequence {chunk.seq_id}"
        assert list(chunk.tokens) == row.tokens[chunk.start : end], f"sequence {chunk.seq_id} was given other tokens than it has"
        assert chunk.sample == (end == len(row.tokens)), f"sequence {chunk.seq_id} samples before its last token"
        assert len(row.table) * self.block_size >= end, f"sequence {chunk.seq_id} has no block for position {end - 1}"
        if chunk.write:
            for position in range(chunk.start, end):
                block, offset = row.table[position // self.block_size], position % self.block_size
                others = [seq_id for seq_id, other in self.rows.items() if other is not row and block in other.table]
                assert not others, f"sequence {chunk.seq_id} writes into block {block}, which sequences {others} read"
                held = self.written.setdefault(block, [])
                assert len(held) >= offset, f"position {position} of sequence {chunk.seq_id} leaves a gap in block {block}"
                held[offset:] = [row.prefix(position)]  # what another sequence left behind it is gone
        for first in range(0, end, self.block_size):
            last = min(first + self.block_size, end) - 1
            held = self.written.get(row.table[first // self.block_size], [])
            assert held[last - first : last - first + 1] == [row.prefix(last)], (
                f"the block of position {last} of sequence {chunk.seq_id} holds nothing there, or another prefix"
            )
        return row
