"""`Sequence`: one sample of a request on its way, and the order among sequences."""

from array import array
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from octavo.core.cache_key import CacheKey
from octavo.core.outputs import CacheReport
from octavo.core.plan import Chunk, SequenceStart
from octavo.core.request import Request
from octavo.kv.lease import Lease
from octavo.kv.prefix_index import Tokens

if TYPE_CHECKING:
    from octavo.scheduler.beam_group import BeamGroup


class Status(Enum):
    """Where a sequence is; only a running one holds a lease."""

    WAITING = "waiting"  # never ran
    FOLLOWING = "following"  # waits, because somebody else is computing the prefix that both have
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again, after it gave its memory up
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable, and the scheduler's own.  There is no prefill and no decode: `num_computed` catches up with `tokens`.

    order: (priority, arrival of its request, its own number): the smaller goes first.  It never changes, so that a preempted sequence
        keeps its age, and samples and beams stay together.
    key: what it shares memory under.
    tokens: the prompt's and the generated ids, as the prefix index reads them.
    num_computed: how many of them have their K and V, or need none.
    is_known: whether the runner knows the sequence.
    cache: what the first admission read from memory instead of computing, and why not more.
    num_prompt_rows_done: how many of the prompt's logprob rows have been delivered (all, when none are asked for, and from the
        start for all samples but the first: the prompt is theirs in common).
    num_computed_before: the most tokens that were computed before a preemption threw them away.
    leader, follows_from, follows_to, followed_since: see Followers: whose tokens it waits for, which (from, up to), and the time at
        which it first waited for anybody.
    beams: the group that it is a beam of, if any.
    refused_with, times_refused: blocks to spare when it last did not fit, and how often it was turned away since without a look.
    times_overtaken: how many sequences were admitted past this one while it was the head of the queue.
    overtook: the id of the head that this one was admitted past, if any.
    """

    seq_id: int
    request: Request
    sample_index: int
    key: CacheKey
    tokens: Tokens
    prompt_len: int
    final_tokens: int
    order: tuple[int, int, int]
    num_prompt_rows_done: int
    status: Status = Status.WAITING
    lease: Lease | None = None
    num_computed: int = 0
    is_known: bool = False
    cache: CacheReport | None = None
    num_computed_before: int = 0
    leader: "Sequence | None" = None
    follows_from: int = 0
    follows_to: int = 0
    followed_since: float | None = None
    beams: "BeamGroup | None" = None
    refused_with: int | None = None
    times_refused: int = 0
    times_overtaken: int = 0
    overtook: int | None = None

    @classmethod
    def of(cls, request: Request, key: CacheKey, arrival: int, seq_id: int, sample_index: int = 0) -> "Sequence":
        prompt_len = len(request.prompt_token_ids)
        return cls(
            seq_id=seq_id,
            request=request,
            sample_index=sample_index,
            key=key,
            tokens=array("i", request.prompt_token_ids),
            prompt_len=prompt_len,
            final_tokens=prompt_len + request.max_tokens - 1,
            order=(request.priority, arrival, seq_id),
            num_prompt_rows_done=prompt_len - 1 if request.params.prompt_logprobs is None or sample_index else 0,
        )

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def num_behind(self) -> int:
        """Tokens still to be computed; 1 while it generates."""
        return len(self.tokens) - self.num_computed

    def next_stop(self, num_tokens: int) -> int:
        """Where a chunk of at most `num_tokens` ends.

        Rows that owe a prompt logprob lead their chunk, so a chunk of rows that were delivered before a preemption ends where
        those that are still owed begin.
        """
        end = min(self.num_computed + num_tokens, len(self.tokens))
        if self.num_computed < self.num_prompt_rows_done < self.prompt_len - 1:
            end = min(end, self.num_prompt_rows_done)
        return end

    def chunk_to(self, end: int, lease: Lease) -> Chunk:
        """The tokens from `num_computed` to `end`, with the blocks that the runner has not heard of."""
        start = self.num_computed
        blocks = lease.blocks
        sent = lease.changed_from
        return Chunk(
            seq_id=self.seq_id,
            start=start,
            tokens=tuple(self.tokens[start:end]) if end - start > 1 else (self.tokens[start],),
            new_blocks=tuple(blocks[sent:]) if len(blocks) > sent else (),
            first_block=sent,
            copies=tuple(lease.copies) if lease.copies else (),
            sample=end == len(self.tokens),
            write=end > lease.num_written,
            prompt_rows=max(0, min(end, self.prompt_len - 1) - start) if start >= self.num_prompt_rows_done else 0,
        )

    def start(self) -> SequenceStart:
        request = self.request
        return SequenceStart(
            seq_id=self.seq_id,
            tokens=tuple(self.tokens),
            prompt_len=self.prompt_len,
            params=request.params,
            seed=request.seed,
            sample_index=self.sample_index,
            stop_token_ids=request.stop_token_ids,
            bad_words_ids=request.bad_words_ids,
        )
