"""`Roster`: the sequences that have not ended, by their own number and by request."""

from collections.abc import Iterable, Iterator

from octavo.core.errors import InvalidRequestError
from octavo.scheduler.sequence import Sequence


class Roster:
    """A request is here as long as one of its sequences is."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}
        self._requests: dict[str, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def get(self, seq_id: int) -> Sequence | None:
        return self._sequences.get(seq_id)

    def request_ids(self) -> list[str]:
        return list(self._requests)

    def of_request(self, request_id: str) -> list[Sequence]:
        """A copy: its sequences that have not ended, in the order in which they came to be."""
        return list(self._requests.get(request_id, ()))

    def refuse_taken(self, request_id: str) -> None:
        """Raise InvalidRequestError when a request of that id has not ended."""
        if request_id in self._requests:
            raise InvalidRequestError(f"request id {request_id!r} is in use by a request that has not ended")

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._sequences[sequence.seq_id] = sequence
            self._requests.setdefault(sequence.request.request_id, []).append(sequence)

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.seq_id]
        siblings = self._requests[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[sequence.request.request_id]
