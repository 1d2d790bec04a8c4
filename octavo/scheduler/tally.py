"""`Tally`: what the scheduler has counted since it was made."""

from dataclasses import dataclass

from octavo.core.outputs import CacheReport


@dataclass(slots=True)
class Tally:
    """Plain counts; `EngineStats` explains those of the same name."""

    preemptions: int = 0
    tokens_computed: int = 0
    tokens_recomputed: int = 0
    tokens_cached: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    tokens_forked: int = 0
    sharing_steps: int = 0
    sharing_total: float = 0.0
    blocks_copied: int = 0

    def observe_first_admission(self, prompt_len: int, cache: CacheReport) -> None:
        """A prompt is asked for once: further samples fork it, and resumptions after a preemption don't count."""
        if cache.num_forked:
            self.tokens_forked += cache.num_forked
        else:
            self.prompt_tokens += prompt_len
            self.prompt_tokens_cached += min(cache.num_tokens, prompt_len)

    def observe_sharing(self, num_leased: int, num_saved: int) -> None:
        """After a step: blocks in leases, and how many more there would be without sharing."""
        if num_leased:
            self.sharing_steps += 1
            self.sharing_total += num_saved / (num_leased + num_saved)

    @property
    def sharing_mean(self) -> float:
        return self.sharing_total / self.sharing_steps if self.sharing_steps else 0.0
