"""`StepPlan` and `StepResult`: the only values that pass between the deciding and the doing side.

The deciding side (`scheduler`, `kv`) builds a plan in full before anything happens; the doing side (`runner`) carries it out.
A plan names memory by block id and never by address, so the same plan drives a CPU, a GPU, or a virtual clock.
"""

from dataclasses import dataclass, field

from octavo.core.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence that (re)enters the running set: what the runner must know to sample from it.

    tokens: all ids so far, the prompt first (a resumed sequence brings its generated tokens too).
    prompt_len: how many of them are the prompt; sample_index: which of the request's `n` samples it is.
    stop_token_ids: ids that may not be chosen before `min_tokens`.
    bad_words_ids: token sequences that may not be generated (`params.bad_words`, tokenised by the front).
    """

    seq_id: int
    tokens: tuple[int, ...]
    prompt_len: int
    params: SamplingParams
    seed: int
    sample_index: int
    stop_token_ids: frozenset[int]
    bad_words_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step: compute `tokens` at absolute positions `start`, `start + 1`, ...

    new_blocks: block ids of the sequence's table from entry `first_block` on: what was appended or replaced since its last chunk
        (all of them after a SequenceStart).
    copies: (source block, destination block) pairs: this sequence goes on in copies of blocks that stay another's.  The copies of all
        chunks are made before any chunk of the plan writes.
    sample: whether the last row's logits choose the next token.
    write: False computes queries only and leaves the cache as it is (the last token of a full prefix hit).
    prompt_rows: how many leading rows owe a prompt logprob (the row at position p scores the prompt token at p + 1).
    """

    seq_id: int
    start: int
    tokens: tuple[int, ...]
    new_blocks: tuple[int, ...]
    sample: bool
    first_block: int = 0
    copies: tuple[tuple[int, int], ...] = ()
    write: bool = True
    prompt_rows: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything that one step does, in this order: forget `released`, enter `started`, make the chunks' copies, compute `chunks`.

    released: sequences whose tables and sampler state are dropped (finished, aborted or preempted since the last plan).
    """

    step: int
    released: tuple[int, ...] = ()
    started: tuple[SequenceStart, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def copies(self) -> tuple[tuple[int, int], ...]:
        """Those of all chunks: one batch, in which no block is both source and destination."""
        return tuple(copy for chunk in self.chunks if chunk.copies for copy in chunk.copies)

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the token itself, its rank (1 is the likeliest), and the k likeliest ids."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The token chosen for one sequence; `logprobs` is present when its parameters ask for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced.  `failed` maps a sequence to the reason why it alone could not be computed.

    prompt_logprobs: per sequence, one entry for each of the chunk's `prompt_rows`.
    elapsed: seconds that the step took on the runner's clock (wall time, or the simulator's virtual time).
    """

    samples: dict[int, Sample]
    elapsed: float
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
