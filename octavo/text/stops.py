"""`StopChecker`: stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopChecker:
    """Lets text through until a stop string is complete, and never a character of one.

    Held back is only the longest end of the text that could still become a stop string.  The match that is complete first wins (of
    two that end together, the longer), so the result doesn't depend on how the text was cut into pieces.  The text is cut before the
    match, or after it when `include` is set.  The cost of a piece depends on its own length and the stop strings, not on the past.

    matched: the stop string that ended the text, or None.  After a match nothing more comes out.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """stops: non-empty strings."""
        self._stops = tuple(stops)
        self._heads = frozenset(stop[0] for stop in stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to deliver now that `text` has come."""
        if self.matched is not None:
            return ""
        if not self._held and self._heads.isdisjoint(text):
            return text
        text = self._held + text
        end, length, stop = min(self._matches(text), default=(0, 0, None))
        if stop is not None:
            self.matched = stop
            self._held = ""
            return text[: end if self._include else end + length]
        start = min(_possible_start(text, stop) for stop in self._stops)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """What was held back; to be called when the text has ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _matches(self, text: str) -> list[tuple[int, int, str]]:
        """(end, minus length, stop) of the first place of each stop string in `text`."""
        places = ((text.find(stop), stop) for stop in self._stops)
        return [(place + len(stop), -len(stop), stop) for place, stop in places if place >= 0]


def _possible_start(text: str, stop: str) -> int:
    """Where the longest end of `text` that begins `stop` starts; the text's length when there is none."""
    place = max(len(text) - len(stop) + 1, 0)
    while (place := text.find(stop[0], place)) >= 0:
        if stop.startswith(text[place:]):
            return place
        place += 1
    return len(text)
