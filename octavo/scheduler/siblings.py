"""Samples and beams of one request share what they have in common by forking each other's leases."""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.scheduler.followers import common_prefix
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Source:
    """A sibling to fork from, and how many of its first tokens are ours, too, and written."""

    sequence: Sequence
    num_tokens: int


def is_being_computed(sequence: Sequence, siblings: Iterable[Sequence], num_tokens: int) -> bool:
    """Whether a running sibling will soon have written more of `sequence`'s tokens than `num_tokens`: then it can be forked."""
    return any(
        sibling is not sequence and sibling.lease is not None and common_prefix(sequence.tokens, sibling.tokens, num_tokens)
        for sibling in siblings
    )


def fork_source(sequence: Sequence, siblings: Iterable[Sequence]) -> Source | None:
    """The running sibling that has the most of `sequence`'s tokens written; None when none has any."""
    best: Source | None = None
    for sibling in siblings:
        lease = sibling.lease
        if sibling is sequence or lease is None or lease.copies:
            continue
        shared = common_prefix(sequence.tokens, sibling.tokens, best.num_tokens if best else 0)
        shared = min(shared, lease.num_written)
        if shared > (best.num_tokens if best else 0):
            best = Source(sibling, shared)
    return best
