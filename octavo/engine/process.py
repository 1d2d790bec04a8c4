"""The engine process: reads messages between steps, steps while there is work, sleeps while there is none.

Started by `octavo.engine.client` as `python -m octavo.engine.process FD`, with one end of a socket pair as that descriptor.
It ends when the front's end of the pair closes, so it never outlives its front.
"""

import logging
import select
import signal
import socket
import sys
from dataclasses import replace

from octavo.core.errors import OctavoError
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.messages import (
    HEADER,
    Abort,
    Add,
    Answer,
    Ask,
    Failed,
    ListPins,
    Outputs,
    PinTokens,
    Publish,
    Question,
    Ready,
    ResetCache,
    Start,
    Stats,
    ToEngine,
    ToFront,
    Unpin,
    Unpublish,
    pack,
    unpack_for_engine,
)

logger = logging.getLogger(__name__)


class FrontGoneError(Exception):
    """The other end of the pair is closed."""


class Mailbox:
    """The engine's end of the pair.  Blocking reads only while the engine is idle."""

    def __init__(self, pair: socket.socket) -> None:
        self._socket = pair
        self._buffer = bytearray()

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Messages that are here now; with `wait`, at least one.  Raises FrontGoneError."""
        messages = self._complete()
        while select.select([self._socket], [], [], None if wait and not messages else 0)[0]:
            part = self._socket.recv(1 << 20)
            if not part:
                raise FrontGoneError
            self._buffer += part
            messages += self._complete()
        return messages

    def send(self, message: ToFront) -> None:
        try:
            self._socket.sendall(pack(message))
        except OSError as error:
            raise FrontGoneError from error

    def _complete(self) -> list[ToEngine]:
        messages = []
        while len(self._buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            messages.append(unpack_for_engine(bytes(self._buffer[HEADER.size : end])))
            del self._buffer[:end]
        return messages


def serve(mailbox: Mailbox) -> None:
    """Build the engine that the first message describes, then serve until the front goes."""
    start, *early = mailbox.receive(wait=True)
    if not isinstance(start, Start):
        raise OctavoError(f"the first message must be Start, not {type(start).__name__}")
    try:
        built = build_engine(EngineConfig(**start.config))
    except Exception as error:  # told to whoever waits for this engine, who then knows the cause
        mailbox.send(_failed(error))
        return
    mailbox.send(Ready(built.limits, built.plan))
    engine = built.engine
    for message in early:
        _handle(engine, mailbox, message)
    while True:
        for message in mailbox.receive(wait=not engine.has_work):
            _handle(engine, mailbox, message)
        if engine.has_work:
            _step(engine, mailbox)


def _step(engine: Engine, mailbox: Mailbox) -> None:
    """One step.  A fault of Octavo's own ends the requests that were in the engine, with its words, and not the process."""
    try:
        outputs = engine.step()
    except Exception as error:
        logger.exception("a step failed outside its requests; they end with this error, and the engine goes on")
        for request_id in engine.scheduler.request_ids():
            mailbox.send(Failed("OctavoError", f"the engine failed: {type(error).__name__}: {error}", request_id))
        engine.reset()
    else:
        if outputs:  # the front knows the prompts
            mailbox.send(Outputs([replace(output, prompt=None, prompt_token_ids=()) for output in outputs]))


def _handle(engine: Engine, mailbox: Mailbox, message: ToEngine) -> None:
    if isinstance(message, Add | Publish):
        try:
            if isinstance(message, Add):
                engine.add_request(message.request)
            else:
                engine.publish(message.request, message.tenants)
        except OctavoError as error:
            mailbox.send(_failed(error, message.request.request_id))
    elif isinstance(message, Abort):
        engine.abort(message.request_id)
    elif not isinstance(message, Start):
        try:
            answer = _answer(engine, message)
        except OctavoError as error:
            mailbox.send(_failed(error))
        else:
            mailbox.send(answer)


def _answer(engine: Engine, question: Question) -> Stats | Answer:
    prefixes = engine.prefixes
    match question:
        case Ask(check):
            if check:
                engine.check()
            return Stats(engine.stats())
        case Unpublish(name):
            return Answer(prefixes.unpublish(name))
        case PinTokens(name, tokens, tenant, cache_salt, ttl):
            return Answer(prefixes.pin(name, tokens, tenant, cache_salt, ttl))
        case Unpin(name):
            return Answer(prefixes.unpin(name))
        case ListPins():
            return Answer(prefixes.pins())
        case ResetCache():
            return Answer(prefixes.reset())


def _failed(error: Exception, request_id: str | None = None) -> Failed:
    cause = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
    return Failed(type(error).__name__, cause, request_id)


def main(descriptor: int) -> None:
    """Entry of the process.  An interrupt from the terminal goes to the front, which decides; it ends this process by closing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(Mailbox(socket.socket(fileno=descriptor)))
    except FrontGoneError:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
