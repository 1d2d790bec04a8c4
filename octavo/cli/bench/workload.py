"""A workload file: requests of token ids, in one of four kinds, with repetitions that differ in text.

`{"name": .., "kind": .., "desc": .., "reps": [..]}`, and per kind a repetition is
batch     `{"requests": [{"prompt": [ids], "max_tokens": n}, ..]}`, all sent at once
staged    the same; the first request ends before the others are sent
session   `{"turns": [{"add": [ids], "max_tokens": n}, ..]}`, each turn resends the whole history
parallel  `{"prompt": [ids], "n": samples, "max_tokens": n}`
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from octavo.core.errors import InvalidRequestError

Kind = Literal["batch", "staged", "session", "parallel"]


@dataclass(frozen=True, slots=True)
class Job:
    """One request: prompt ids, how many tokens to generate, and how many samples."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """reps: per repetition its jobs in order.  In a session a job's prompt is only what its turn adds to the history."""

    name: str
    kind: Kind
    desc: str
    reps: tuple[tuple[Job, ...], ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        if self.kind == "session":
            return max(sum(len(job.prompt) + job.max_tokens for job in rep) for rep in self.reps)
        return max(len(job.prompt) + job.max_tokens for rep in self.reps for job in rep)


# Before anything is measured: threads exist, memory is touched, buffers are warm.  Ids that every vocabulary has.
WARM_UP = (Job(tuple(range(1, 33)), 8), Job(tuple(range(33, 65)), 8))


def load_workload(path: str | Path) -> Workload:
    """Read and check a workload file.  Raises InvalidRequestError naming the file and the field."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"the workload {path} can't be read: {error}") from error
    try:
        kind = raw["kind"]
        if kind not in get_args(Kind):
            raise ValueError(f"kind {kind!r} is not one of {', '.join(get_args(Kind))}")
        reps = tuple(_rep(kind, rep) for rep in raw["reps"])
        if not reps or not all(reps):
            raise ValueError("reps is empty, or one of them is")
        return Workload(str(raw.get("name", Path(path).stem)), kind, str(raw.get("desc", "")), reps)
    except KeyError as error:
        raise InvalidRequestError(f"the workload {path} lacks the field {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequestError(f"the workload {path} is wrong: {error}") from error


def _rep(kind: Kind, rep: dict[str, Any]) -> tuple[Job, ...]:
    if kind == "session":
        return tuple(_job(turn["add"], turn["max_tokens"]) for turn in rep["turns"])
    if kind == "parallel":
        return (_job(rep["prompt"], rep["max_tokens"], rep["n"]),)
    return tuple(_job(request["prompt"], request["max_tokens"]) for request in rep["requests"])


def _job(prompt: Any, max_tokens: Any, n: Any = 1) -> Job:
    ids = tuple(prompt)
    if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ValueError("a prompt must be a list of token ids that isn't empty")
    for name, value in (("max_tokens", max_tokens), ("n", n)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of 1 or more")
    return Job(ids, max_tokens, n)
