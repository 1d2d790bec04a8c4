"""What the memory and the scheduler report about themselves: plain counts, taken at one moment."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The pool of KV blocks at one moment.

    Blocks, each in exactly one state: free + cached + leased + quarantined + offline == total.
    Tokens, each place of the pool in exactly one share (SOSP 2023, PagedAttention, section 3.1 and figure 2):
        useful: holds a token's K and V that its sequence still reads;
        reserved: in a leased block, and will be used later by that sequence (up to its max_tokens);
        internal: in a leased block, and will never be used by it;
        external: in no lease, yet unusable: rounding of contiguous regions, and free regions that are too short;
        free: can be taken now (cached blocks included);
        out of service: in a quarantined or offline block.
    Sharing: blocks_shared have two holders or more; blocks_saved is how many more blocks there would be if each holder had its own;
        blocks_pinned are kept by a pin or a publication, and are evicted last.
    evictions_*: cached blocks that lost their content, since the memory was made: for others (capacity), by their tenant's quota, by
        `reset_cache`, and by the end of their publication.
    """

    block_size: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_leased: int
    blocks_quarantined: int
    blocks_offline: int
    tokens_useful: int
    tokens_reserved: int
    tokens_internal: int
    tokens_external: int
    tokens_free: int
    blocks_shared: int = 0
    blocks_saved: int = 0
    blocks_pinned: int = 0
    evictions_capacity: int = 0
    evictions_quota: int = 0
    evictions_reset: int = 0
    evictions_unpublished: int = 0

    @property
    def tokens_total(self) -> int:
        return self.blocks_total * self.block_size

    @property
    def tokens_out_of_service(self) -> int:
        return (self.blocks_quarantined + self.blocks_offline) * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats(MemoryStats):
    """The memory and the scheduler's queues at one moment, and the scheduler's counts since it was made.

    tokens_computed: rows computed in committed steps.  tokens_recomputed: those of them that a preemption had thrown away before.
    following: those of the waiting that wait for a prefix which somebody else is computing.
    tokens_cached: tokens read from memory instead of computed, at every admission.
    prompt_tokens: of requests that were admitted; prompt_tokens_cached: those of them that were read from memory at first admission.
    tokens_forked: prompt tokens that further samples of a request share with its first.
    sharing_mean: blocks saved by sharing, as a share of the blocks there would be without it, on average over the `sharing_steps`
        steps after which anybody held blocks.  blocks_copied: by sequences that went on differently in a block that stayed another's.
    overtakes: sequences that were admitted past a head of the queue that did not fit.
    output_share: how much of max_tokens a sequence is expected to use (1: all of it), as seen so far.
    prefill_speed: prompt tokens per second, as measured (0: not measured yet).
    """

    waiting: int
    following: int
    running: int
    steps: int
    preemptions: int
    overtakes: int
    tokens_computed: int
    tokens_recomputed: int
    tokens_cached: int
    prompt_tokens: int
    prompt_tokens_cached: int
    tokens_forked: int
    sharing_mean: float
    sharing_steps: int
    blocks_copied: int
    output_share: float
    prefill_speed: float

    @property
    def hit_rate(self) -> float:
        """Prompt tokens read from memory, of all that were asked for; 0.0 before any was."""
        return self.prompt_tokens_cached / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self) -> dict[str, int | float]:
        """Every field by its name, and the hit rate."""
        return {**asdict(self), "hit_rate": self.hit_rate}
