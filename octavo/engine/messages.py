"""What passes between a front and the engine process: typed msgpack, with a length before each message.

Never pickle: whatever else may one day write to this socket must not be able to run code here.
"""

import struct
from typing import Any

import msgspec

from octavo.core.outputs import RequestOutput
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.inputs import EngineLimits
from octavo.kv.manager import Pin
from octavo.spec.budget import MemoryPlan

HEADER = struct.Struct("<I")


class Start(msgspec.Struct, tag=True):
    """Front to engine, first: the fields of an EngineConfig."""

    config: dict[str, Any]


class Ready(msgspec.Struct, tag=True):
    """Engine to front: it serves."""

    limits: EngineLimits
    plan: MemoryPlan


class Failed(msgspec.Struct, tag=True):
    """Engine to front: it could not start, request `request_id` was refused, or (without one) the oldest question was.

    kind: the error's class in `octavo.core.errors`.
    """

    kind: str
    message: str
    request_id: str | None = None


class Add(msgspec.Struct, tag=True):
    """Front to engine: queue this."""

    request: Request


class Abort(msgspec.Struct, tag=True):
    """Front to engine: drop this request; it gives no further output."""

    request_id: str


class Ask(msgspec.Struct, tag=True):
    """Front to engine: answer with `Stats`, or first prove the laws and answer `Failed` if one is broken."""

    check: bool = False


class Stats(msgspec.Struct, tag=True):
    """Engine to front: to an `Ask`, when it is the oldest question."""

    stats: EngineStats


class Publish(msgspec.Struct, tag=True):
    """Front to engine: queue the request that computes what it names, and let `tenants` (None: all) read that."""

    request: Request
    tenants: list[str] | None


class Unpublish(msgspec.Struct, tag=True):
    """Front to engine: end a publication.  Answer: whether there was one."""

    name: str


class PinTokens(msgspec.Struct, tag=True):
    """Front to engine: keep what memory has of these.  Answer: how many that are."""

    name: str
    tokens: list[int]
    tenant: str
    cache_salt: str
    ttl: float | None


class Unpin(msgspec.Struct, tag=True):
    """Front to engine: end a pin.  Answer: whether there was one."""

    name: str


class ListPins(msgspec.Struct, tag=True):
    """Front to engine.  Answer: the pins."""


class ResetCache(msgspec.Struct, tag=True):
    """Front to engine: forget what can be found.  Answer: how many blocks became free."""


class Answer(msgspec.Struct, tag=True):
    """Engine to front: to the oldest question."""

    value: bool | int | list[Pin]


class Outputs(msgspec.Struct, tag=True):
    """Engine to front: what one step gave."""

    outputs: list[RequestOutput]


# Answered in order, each with an `Answer` or `Stats`, or with `Failed`.
Question = Ask | Unpublish | PinTokens | Unpin | ListPins | ResetCache
ToEngine = Start | Add | Publish | Abort | Question
ToFront = Ready | Failed | Stats | Answer | Outputs


def _plain(value: Any) -> Any:
    """Numbers of a class of their own (numpy's, a default that remembers being one) as what they are."""
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} can't be sent to the engine process")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decode_to_engine = msgspec.msgpack.Decoder(ToEngine)
_decode_to_front = msgspec.msgpack.Decoder(ToFront)


def pack(message: ToEngine | ToFront) -> bytes:
    """Header and body."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def unpack_for_engine(body: bytes) -> ToEngine:
    """A message body that the engine process received.  Raises msgspec.DecodeError or ValidationError."""
    return _decode_to_engine.decode(body)


def unpack_for_front(body: bytes) -> ToFront:
    """A message body that the front received.  Raises msgspec.DecodeError or ValidationError."""
    return _decode_to_front.decode(body)
