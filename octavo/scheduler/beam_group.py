"""`BeamGroup`: the sequences that are one beam search, in lock step."""

from dataclasses import dataclass, field

from octavo.core.plan import TokenLogprobs
from octavo.core.request import Request
from octavo.scheduler.beams import BeamSearch
from octavo.scheduler.population import Population
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.updates import SequenceUpdate, hypothesis_updates


@dataclass(slots=True, eq=False)
class BeamGroup:
    """Mutable, and the scheduler's own.

    members: one sequence per live beam of `search`, in its order.
    candidates: what each of them, by seq_id, has brought for the next token; those who have wait for the others (one may have been
        preempted).
    """

    search: BeamSearch
    members: list[Sequence]
    candidates: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.search.params.beam_width

    @property
    def num_running(self) -> int:
        return sum(1 for member in self.members if member.lease is not None)

    def take(self, sequence: Sequence, logprobs: TokenLogprobs | None) -> bool:
        """Note the candidates of one beam.  True when all beams have brought theirs."""
        self.candidates[sequence.seq_id] = () if logprobs is None else logprobs.top
        return len(self.candidates) == len(self.members)

    def advance(self, population: Population) -> list[SequenceUpdate]:
        """Choose the next beams and make them the members; the results, when the search is over.

        The first beam that grows from a member goes on in its memory; further ones fork it, before its next token is written; what
        nothing grows from gives its memory back.
        """
        self.search = self.search.advance([self.candidates[member.seq_id] for member in self.members])
        self.candidates = {}
        if self.search.is_over:
            updates = hypothesis_updates(self.members[0], self.search.results)
            self.end(population)
            return updates
        parents, heirs = self.members, {}
        self.members = []
        for beam in self.search.beams:
            parent = parents[beam.parent]
            if beam.parent in heirs:
                self.members.append(population.fork(parent, beam.token_id))
            else:
                heirs[beam.parent] = beam.token_id
                self.members.append(parent)
        for index, parent in enumerate(parents):
            if index in heirs:
                parent.tokens.append(heirs[index])
                population.forget(parent)  # its newest token isn't the one that the runner chose, so it starts there anew
            else:
                population.end(parent, None)
        return []

    def end(self, population: Population) -> None:
        """All members go, wherever they are."""
        for member in self.members:
            population.end(member, None)
        self.members = []


def begin_beams(request: Request, first: Sequence) -> BeamGroup | None:
    """The group of a request that asks for a beam search; None for any other.  Mutates `first`, which is its first member."""
    if request.beam is None:
        return None
    search = BeamSearch(request.beam, request.max_tokens, request.stop_token_ids)
    first.beams = BeamGroup(search, [first])
    return first.beams
