"""`ChunkBudget`: how much of prompts a step may take while streams run."""

from collections import deque
from statistics import median

# Measurements that count.  Their median is taken: one step that something else on the machine disturbed moves nothing.
REMEMBERED = 15
# A prompt always advances by so much, however slow the machine is; also the unit of a budget (the kernels' tile).
LEAST_CHUNK = 16
# Streams that need all of the target by themselves still leave prompts this part of their own time.
LEAST_SHARE = 0.5
# Until a prompt has been measured.
FIRST_CHUNK = 256
# A step grows to at most so many times its target, however many wait.
MOST_STRETCH = 3.0


class ChunkBudget:
    """Keeps a step near `target_seconds` by the measured speeds, so that a long prompt doesn't stall the streams.

    The idea of a token budget from a target between tokens is Sarathi-Serve's (OSDI 2024, section 4.3); here the budget follows
    the measurement instead of a profile made beforehand, and the number of those who wait: a long step delays each stream, and brings
    forward each sequence that has no token yet.  So the target holds for one newcomer beside many streams, and is stretched where as
    many wait as stream.  It never changes a token (law 1), only when it comes.
    """

    def __init__(self, max_tokens: int, target_seconds: float) -> None:
        self._max_tokens = max_tokens
        self._target_seconds = target_seconds
        self._stream_seconds: deque[float] = deque(maxlen=REMEMBERED)  # of steps without prompts
        self._prompt_speeds: deque[float] = deque(maxlen=REMEMBERED)  # prompt tokens a second, of steps with prompts
        self._prompt_rates: deque[float] = deque(maxlen=REMEMBERED)  # the same, of the whole step's seconds

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second; 0.0 until measured."""
        return median(self._prompt_speeds) if self._prompt_speeds else 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second of steps that also serve streams: how fast prompts advance now; 0.0 until measured."""
        return median(self._prompt_rates) if self._prompt_rates else 0.0

    def tokens(self, num_streams: int, num_behind: int = 0) -> int:
        """Prompt tokens for a step in which `num_streams` sequences generate; all that the step holds when there are none.

        num_behind: sequences that have no token yet.
        """
        left = self._max_tokens - num_streams
        if not num_streams:
            return left
        if not self._prompt_speeds:
            return min(left, FIRST_CHUNK)
        stretch = min(MOST_STRETCH, 1 + num_behind / num_streams)
        streaming = self._streaming_seconds()
        seconds = max(self._target_seconds * stretch - streaming, LEAST_SHARE * streaming)
        affordable = int(seconds * self.prefill_speed)
        return min(left, max(LEAST_CHUNK, affordable // LEAST_CHUNK * LEAST_CHUNK))

    def observe(self, num_streams: int, prompt_tokens: int, elapsed: float) -> None:
        """A step took `elapsed` seconds for one token of each stream and `prompt_tokens` of prompts.  Mutates."""
        if prompt_tokens:
            if elapsed > 0:
                self._prompt_rates.append(prompt_tokens / elapsed)
            # A step can seem faster than its streams alone; its prompts are never taken for free.
            spent_on_prompts = max(elapsed - self._streaming_seconds(), 0.1 * elapsed) if num_streams else elapsed
            if spent_on_prompts > 0:
                self._prompt_speeds.append(prompt_tokens / spent_on_prompts)
        elif num_streams:
            self._stream_seconds.append(elapsed)

    def _streaming_seconds(self) -> float:
        return median(self._stream_seconds) if self._stream_seconds else 0.0
