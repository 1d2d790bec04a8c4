"""What a request forbids or favours by token id: allowed ids, bad words, the ban on stopping early, and the logit bias."""

from collections.abc import Sequence

import torch

from octavo.core.plan import SequenceStart


class Constraints:
    """The masks and the bias of one sequence, ready to be applied to its rows.

    Ids at or above `vocab_size` are left out: a model's head can be narrower than its tokenizer.
    """

    def __init__(self, start: SequenceStart, vocab_size: int) -> None:
        params = start.params
        bias = {token: value for token, value in (params.logit_bias or {}).items() if token < vocab_size}
        bad_words = [word for word in start.bad_words_ids if word and max(word) < vocab_size]
        self._allowed = None if params.allowed_token_ids is None else _indices(params.allowed_token_ids, vocab_size)
        self._banned = _indices([word[0] for word in bad_words if len(word) == 1], vocab_size)
        self._bad_sequences = [word for word in bad_words if len(word) > 1]
        self._min_tokens = params.min_tokens
        self._stops = _indices(sorted(start.stop_token_ids), vocab_size)
        self._bias_ids = _indices(list(bias), vocab_size)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)

    @property
    def empty(self) -> bool:
        """Whether `apply` would never change a row."""
        masks = len(self._banned) or self._bad_sequences or (self._min_tokens and len(self._stops))
        return self._allowed is None and not masks and not len(self._bias)

    def apply(self, row: torch.Tensor, output: list[int]) -> None:
        """Mask (with -inf) and bias `row` (float32 [vocab]) in place, before the token that follows `output` is chosen."""
        device = row.device
        if self._allowed is not None:
            allowed = self._allowed.to(device)
            kept = row[allowed]
            row.fill_(-torch.inf)
            row[allowed] = kept
        row[self._banned.to(device)] = -torch.inf
        for *head, last in self._bad_sequences:
            if output[-len(head) :] == head:
                row[last] = -torch.inf
        if len(output) < self._min_tokens:
            row[self._stops.to(device)] = -torch.inf
        if len(self._bias):
            row[self._bias_ids.to(device)] += self._bias.to(device)


def _indices(tokens: Sequence[int], vocab_size: int) -> torch.Tensor:
    return torch.tensor([token for token in dict.fromkeys(tokens) if token < vocab_size], dtype=torch.int64)
