"""`Followers`: sequences that wait for a prefix which somebody else is computing right now."""

from collections import defaultdict
from collections.abc import Iterable

from octavo.kv.manager import KVCacheManager
from octavo.kv.prefix_index import Tokens
from octavo.scheduler.sequence import Sequence, Status


class Followers:
    """Equal prefixes that arrive together are computed once: the first one leads, the others wait for its blocks.

    A follower waits until the leader has written what both have, or is gone (ended, failed, preempted: then the first follower finds
    nobody ahead of it and leads itself), and never longer than computing the same tokens would take at the rate at which prompts
    advance now.  It gives up little by that: what the leader has written by then is read, whatever happens.

    Samples of one request always follow the one that computes their prompt (if the memory can fork); others only where memory finds
    equal prefixes, and when that saves a block.  enabled: whether anybody follows at all.
    """

    def __init__(self, manager: KVCacheManager, enabled: bool = True) -> None:
        self._manager = manager
        self._enabled = enabled
        self._leaders: dict[bytes, list[Sequence]] = {}
        self._now = self._rate = 0.0

    def survey(self, running: Iterable[Sequence], now: float, prompt_rate: float) -> None:
        """Before sequences enter: who computes a prompt now.

        now: on the clock of the step results, in seconds.  prompt_rate: prompt tokens per second beside all other work; 0.0: unknown.
        """
        self._now, self._rate = now, prompt_rate
        leaders: defaultdict[bytes, list[Sequence]] = defaultdict(list)
        for sequence in running if self._enabled else ():
            if sequence.num_behind > 1:
                leaders[sequence.key.digest].append(sequence)
        self._leaders = dict(leaders)

    def lead(self, sequence: Sequence) -> None:
        """`sequence` has entered: others may follow it in this very step."""
        if self._enabled and sequence.num_behind > 1:
            self._leaders.setdefault(sequence.key.digest, []).append(sequence)

    def keeps_waiting(self, sequence: Sequence) -> bool:
        """Whether `sequence`, which may be a follower, is still one.  Mutates its state."""
        leader = sequence.leader
        if leader is None:
            return False
        wanted = sequence.follows_to
        if leader.status is Status.RUNNING and leader.num_computed < wanted and not self._too_long(sequence):
            return True
        sequence.leader = None
        sequence.status = Status.PREEMPTED if sequence.num_computed_before else Status.WAITING
        return False

    def follows(self, sequence: Sequence, num_found: int) -> bool:
        """Whether `sequence` had better wait: somebody is about to write more of its prefix than is found.  Mutates it.

        num_found: tokens that it would read from memory if it entered now.
        """
        best, leader = num_found, None
        for candidate in self._leaders.get(sequence.key.digest, ()):
            if candidate.request is sequence.request:
                least = best
            elif self._manager.can_find:
                least = max(best, num_found + self._manager.block_size - 1)
            else:
                continue
            shared = common_prefix(sequence.tokens, candidate.tokens, least)
            if shared > least and candidate.num_computed < shared:
                best, leader = shared, candidate
        if leader is None:
            return False
        if sequence.followed_since is None:
            sequence.followed_since = self._now
        sequence.leader, sequence.follows_to, sequence.follows_from = leader, best, num_found
        if self._too_long(sequence):
            sequence.leader = None
            return False
        sequence.status = Status.FOLLOWING
        return True

    def _too_long(self, sequence: Sequence) -> bool:
        """Since it first followed anybody: a row of leaders that fail doesn't make it wait over and over."""
        if not self._rate or sequence.followed_since is None:
            return False
        return (self._now - sequence.followed_since) * self._rate > sequence.follows_to - sequence.follows_from


def common_prefix(ours: Tokens, theirs: Tokens, more_than: int) -> int:
    """How many leading tokens are equal; 0 when it isn't more than `more_than`, which costs one comparison of slices."""
    low, high = more_than + 1, min(len(ours), len(theirs))
    if low > high or ours[:low] != theirs[:low]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
