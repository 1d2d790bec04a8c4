"""`Forecast`: how much memory the running sequences will want, so that admission leaves them room to grow."""

from bisect import insort
from math import ceil

# Before any output has ended, half of what its max_tokens allows is expected.
FIRST_SHARE = 0.5
# How fast the expectation follows what is seen.
LEARNING = 0.1


class Forecast:
    """Learns which share of max_tokens outputs really use, and from it the peak of the memory to come.

    A sequence ends and gives its memory back while others still grow, so the peak is less than the sum of the final sizes.
    All running sequences advance by one token a step: just before one with `left` tokens to go ends, each that is still there has
    grown by `left`.  (Admitting by the peak of the future, with lengths expected from the past: Gong et al., Past-Future
    Scheduler, ASPLOS 2025.)  A wrong guess costs a preemption or a wait, never a wrong token.

    releases_at_end: False when ended sequences keep their memory (static batching); then nothing but the final sizes counts.
    """

    def __init__(self, releases_at_end: bool = True) -> None:
        self.output_share = FIRST_SHARE
        self._releases_at_end = releases_at_end

    def observe_end(self, num_generated: int, max_tokens: int) -> None:
        """An output ended by itself after `num_generated` of at most `max_tokens` tokens.  Mutates."""
        self.output_share += LEARNING * (num_generated / max_tokens - self.output_share)

    def observe_shortage(self) -> None:
        """The memory ran short: outputs are longer than expected.  Mutates."""
        self.output_share += LEARNING * (1.0 - self.output_share)

    def left(self, most: int) -> int:
        """Tokens that a sequence is expected to grow by, of the `most` that it may."""
        return ceil(most * self.output_share) if self._releases_at_end else most

    def peak(self, members: list[tuple[int, int]]) -> int:
        """The most tokens held at once by `members`: (expected growth, tokens held now), sorted by growth, the largest last."""
        if not self._releases_at_end:
            return sum(left + now for left, now in members)
        peak = held = 0
        for count, (left, now) in enumerate(reversed(members), start=1):
            held += now
            peak = max(peak, held + count * left)
        return peak


def join(members: list[tuple[int, int]], member: tuple[int, int]) -> list[tuple[int, int]]:
    """A copy of sorted `members` with `member` in its place."""
    joined = members.copy()
    insort(joined, member)
    return joined
