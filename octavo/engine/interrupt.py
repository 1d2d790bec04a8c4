"""Ctrl-C as a question that is asked between steps, so that no step is torn in the middle."""

import signal
import threading
from types import FrameType


class Interrupt:
    """While the block runs, the first Ctrl-C sets `asked`; a second one raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.asked = False
        self._mine = threading.current_thread() is threading.main_thread()  # only that thread may set handlers

    def __enter__(self) -> "Interrupt":
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
