"""`ChunkBudget`: how much of prompts a step may take while streams run."""

# Steps fade from the measurement with this factor each: about twenty steps count.
FADING = 0.95
# A prompt always advances by so much, however slow the machine is; also the unit of a budget (the kernels' tile).
LEAST_CHUNK = 16
# Streams that need all of the target by themselves still leave prompts this part of their own time.
LEAST_SHARE = 0.5
# Until a prompt has been measured.
FIRST_CHUNK = 256


class ChunkBudget:
    """Keeps a step near `target_seconds` by the measured speeds, so that a long prompt doesn't stall the streams.

    The idea of a token budget from a target between tokens is Sarathi-Serve's (OSDI 2024, section 4.3); here the budget follows
    the measurement instead of a profile made beforehand.  It never changes a token (law 1), only when it comes.
    """

    def __init__(self, max_tokens: int, target_seconds: float) -> None:
        self._max_tokens = max_tokens
        self._target_seconds = target_seconds
        self._stream_seconds = 0.0  # of a step without prompts
        self._prompt_tokens = 0.0  # both faded sums over steps with prompts
        self._prompt_seconds = 0.0

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second; 0.0 until measured."""
        return self._prompt_tokens / self._prompt_seconds if self._prompt_seconds > 0 else 0.0

    def tokens(self, num_streams: int) -> int:
        """Prompt tokens for a step in which `num_streams` sequences generate; all that the step holds when there are none."""
        left = self._max_tokens - num_streams
        if not num_streams:
            return left
        if self._prompt_seconds <= 0:
            return min(left, FIRST_CHUNK)
        seconds = max(self._target_seconds - self._stream_seconds, LEAST_SHARE * self._stream_seconds)
        affordable = int(seconds * self.prefill_speed)
        return min(left, max(LEAST_CHUNK, affordable // LEAST_CHUNK * LEAST_CHUNK))

    def observe(self, num_streams: int, prompt_tokens: int, elapsed: float) -> None:
        """A step took `elapsed` seconds for one token of each stream and `prompt_tokens` of prompts.  Mutates."""
        if not prompt_tokens:
            if num_streams:
                self._stream_seconds += (1 - FADING) * (elapsed - self._stream_seconds) if self._stream_seconds else elapsed
            return
        spent_on_prompts = elapsed - self._stream_seconds if num_streams else elapsed
        self._prompt_tokens = FADING * self._prompt_tokens + prompt_tokens
        # A step can seem faster than its streams alone; it is never taken for free.
        self._prompt_seconds = FADING * self._prompt_seconds + max(spent_on_prompts, 0.1 * elapsed)
