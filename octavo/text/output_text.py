"""`OutputText`: the whole way from one sample's tokens to the text that its caller sees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.core.params import SamplingParams
from octavo.text.detokenizer import Detokenizer
from octavo.text.stops import StopChecker

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer


class OutputText:
    """Detokenises a sample's tokens and ends its text at a stop string.

    Stop strings are looked for in what comes after the first `params.min_tokens` tokens.

    num_tokens: tokens taken in so far, the one that completed a stop string being the last.
    """

    def __init__(self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopChecker(params.stop or (), include=params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self.num_tokens = 0

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int]) -> str:
        """The new text of `token_ids`.  Tokens after a stop string are left alone: see `num_tokens`."""
        delta = ""
        for token in token_ids:
            if self.stop_reason is not None:
                break
            self.num_tokens += 1
            text = self._detokenizer.push((token,))
            delta += text if self.num_tokens <= self._min_tokens else self._stops.push(text)
        return delta

    def finish(self) -> str:
        """The last text, once the sample has ended: what was held back for a character or a stop string that didn't come."""
        if self.stop_reason is not None:
            return ""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()
