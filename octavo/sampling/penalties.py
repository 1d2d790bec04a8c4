"""Penalties for tokens that were seen before."""

from collections.abc import Iterable

import numpy as np
import torch

from octavo.core.params import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


class SeenTokens:
    """The distinct tokens of one sequence and how often each was generated, kept so that a step costs one gather and one scatter.

    Prompt tokens matter to the repetition penalty alone; they are here with a count of 0.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    def add(self, token: int) -> None:
        """Count one generated `token`."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._grow()
        self._ids[slot] = token
        self._counts[slot] += 1.0

    def penalise(self, row: torch.Tensor, params: SamplingParams) -> None:
        """Lower the logits of seen tokens in `row` (float32 [vocab]), in place.

        Repetition first (Keskar et al. 2019, section 4.1: a positive logit is divided, a negative one multiplied), over prompt and
        output; then frequency times the count, and presence once, over the output.
        """
        size = len(self._slots)
        ids = torch.from_numpy(self._ids[:size]).to(row.device)
        counts = torch.from_numpy(self._counts[:size]).to(row.device)
        values = row[ids]
        if params.repetition_penalty != 1.0:
            values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.frequency_penalty * counts
        values -= params.presence_penalty * (counts > 0)
        row[ids] = values

    def _grow(self) -> None:
        room = max(64, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
