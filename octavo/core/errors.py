"""The errors that Octavo raises.

Every message carries the numbers, the cause, and the setting that changes the outcome.
A class says who can act on it; callers catch the class and never parse the text.
"""


class OctavoError(Exception):
    """Base of everything that Octavo raises on purpose."""


class InvalidRequestError(OctavoError, ValueError):
    """A prompt or parameter that can never be served. `index` names the offending prompt of a list."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message if index is None else f"prompt {index}: {message}")
        self.index = index
        self.detail = message


class ConfigError(OctavoError, ValueError):
    """A setting of the engine that is wrong by itself or contradicts another."""


class CapacityError(OctavoError):
    """What was asked for needs more memory than there is; raised before any of it is taken."""


class ModelLoadError(OctavoError):
    """A model's files can't be used. The message names the file and the field."""


class UnsupportedModelError(ModelLoadError):
    """The files are sound, but their architecture (or a feature of it) isn't known to Octavo."""


class InvariantError(OctavoError):
    """A law of the memory (`check()`) does not hold: a fault of Octavo's own."""


class EngineDeadError(OctavoError):
    """The engine process ended; every request that was in it gets this."""
