"""`EngineClient`: an engine process and the asyncio streams that come out of it."""

import asyncio
import dataclasses
import itertools
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from octavo.core import errors
from octavo.core.errors import EngineDeadError, OctavoError
from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.request import Request
from octavo.core.stats import EngineStats
from octavo.engine.config import EngineConfig
from octavo.engine.messages import (
    HEADER,
    Abort,
    Add,
    Answer,
    Ask,
    Failed,
    Outputs,
    Question,
    Ready,
    Start,
    Stats,
    ToEngine,
    ToFront,
    pack,
    unpack_for_front,
)

# A file in the working directory must not stand in for a module of the engine's.
SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()


class _Stream:
    """A request that runs: `open` samples have not ended, and `queue` holds what its reader hasn't taken yet."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.open = set(range(request.params.n))
        self.queue: asyncio.Queue[RequestOutput | OctavoError] = asyncio.Queue()

    def put(self, output: RequestOutput) -> None:
        """Pass a delta on, under the name and with the prompt that its reader knows."""
        request = self.request
        self.open -= {sample.index for sample in output.outputs if sample.finish_reason is not None}
        self.queue.put_nowait(
            dataclasses.replace(
                output, request_id=request.request_id, prompt=request.prompt, prompt_token_ids=request.prompt_token_ids
            )
        )

    def aborted(self) -> RequestOutput:
        """The last delta of a request that was ended from outside."""
        seed = self.request.seed
        outputs = tuple(CompletionOutput(index, "", (), None, seed, finish_reason="abort") for index in sorted(self.open))
        return RequestOutput(self.request.request_id, None, (), outputs, finished=True)


class EngineClient:
    """Starts the engine process and waits until it serves; from then on everything happens on the event loop that first uses it.

    Raises what building the engine raised, or EngineDeadError when the process ended.  The pair of sockets is private to the two
    processes: nothing listens anywhere.
    """

    def __init__(self, config: EngineConfig) -> None:
        here, there = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, *SAFE_PATH, "-m", "octavo.engine.process", str(there.fileno())],
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
        there.close()
        self._socket = here
        # A request goes by a name of our own: what is still on its way for one that was left must not reach the next of that id.
        self._names = itertools.count()
        self._streams: dict[str, _Stream] = {}
        self._by_id: dict[str, str] = {}
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._dead: EngineDeadError | None = None
        try:
            here.sendall(pack(Start(dataclasses.asdict(config))))
            ready = self._first_message()
        except BaseException:
            self.close()
            raise
        self.limits = ready.limits
        self.plan = ready.plan

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stream(self, request: Request, *, message: Callable[[Request], ToEngine] = Add) -> AsyncIterator[RequestOutput]:
        """The request's deltas.  Leaving the iterator early aborts the request; its memory is free within a step.

        message: what brings it to the engine.
        Raises InvalidRequestError when the engine refuses it, EngineDeadError when the process ends meanwhile.
        """
        await self._attach()
        if request.request_id in self._by_id:
            raise errors.InvalidRequestError(f"request id {request.request_id!r} is in use by a request that still runs; use another")
        name = self._by_id[request.request_id] = str(next(self._names))
        stream = self._streams[name] = _Stream(request)
        finished = False
        try:
            await self._send(message(dataclasses.replace(request, request_id=name, prompt=None)))
            while not finished:
                item = await stream.queue.get()
                if isinstance(item, OctavoError):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            del self._streams[name], self._by_id[request.request_id]
            if not finished and self._dead is None:
                self._write(Abort(name))

    async def abort(self, request_id: str) -> bool:
        """End a request from outside: the last delta of its stream says "abort" for the samples still open.  False: there is none."""
        name = self._by_id.get(request_id)
        if name is None:
            return False
        stream = self._streams[name]
        await self._send(Abort(name))
        if stream.open:
            stream.put(stream.aborted())
        return True

    async def stats(self, *, check: bool = False) -> EngineStats:
        """The engine's stats between two of its steps; with `check`, InvariantError when a law of the memory is broken."""
        stats: EngineStats = await self.ask(Ask(check))
        return stats

    async def ask(self, question: Question) -> Any:
        """What the engine answers between two of its steps (see each question).  Raises what the engine raised, as its own class."""
        await self._attach()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        await self._send(question)
        return await answer

    def close(self) -> None:
        """End the process and wait for it.  Streams that still run raise EngineDeadError.  May be called again."""
        self._hang_up()
        self._wait()

    async def aclose(self) -> None:
        """As `close`; the event loop goes on meanwhile."""
        self._hang_up()
        await asyncio.to_thread(self._wait)

    def _hang_up(self) -> None:
        """The engine process ends when this end is closed."""
        self._end(EngineDeadError("the engine was closed"))
        if self._writer is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._writer.transport.abort)
        else:
            self._socket.close()
        if self._process.poll() is None:
            self._process.terminate()

    def _wait(self) -> None:
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # a step that is too long to wait for
            self._process.kill()
            self._process.wait()

    def _first_message(self) -> Ready:
        body = self._read_blocking(HEADER.unpack(self._read_blocking(HEADER.size))[0])
        message = unpack_for_front(body)
        if isinstance(message, Failed):
            raise _error(message)
        if not isinstance(message, Ready):
            raise EngineDeadError(f"the engine process began with {type(message).__name__} instead of Ready")
        return message

    def _read_blocking(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise self._death()
            data += part
        return data

    async def _attach(self) -> None:
        """Hand the socket to this event loop; whoever comes meanwhile waits for the first."""
        if self._dead is not None:
            raise self._dead
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self._open())
        elif self._loop is not asyncio.get_running_loop():
            raise OctavoError("this engine belongs to the event loop that first used it; use it there, or make another engine")
        assert self._opening is not None  # made with the loop
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        self._socket.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=1 << 26)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                self._dispatch(unpack_for_front(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._end(await asyncio.to_thread(self._death))
        except Exception as error:  # a fault of this side's: better all streams end with its words than none ever does
            self._end(EngineDeadError(f"the engine's messages can't be read any more: {type(error).__name__}: {error}"))

    def _dispatch(self, message: ToFront) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                if (stream := self._streams.get(output.request_id)) is not None:
                    stream.put(output)
        elif isinstance(message, Stats):
            self._answer(message.stats)
        elif isinstance(message, Answer):
            self._answer(message.value)
        elif isinstance(message, Failed):
            if message.request_id is None:
                self._answer(_error(message))
            elif (stream := self._streams.get(message.request_id)) is not None:
                stream.queue.put_nowait(_error(message))

    def _answer(self, answer: Any) -> None:
        future = self._asked.popleft()
        if future.done():  # its asker was cancelled
            return
        if isinstance(answer, OctavoError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def _send(self, message: ToEngine) -> None:
        self._write(message)
        assert self._writer is not None  # _attach made it
        await self._writer.drain()

    def _write(self, message: ToEngine) -> None:
        if self._dead is not None:
            raise self._dead
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    def _death(self) -> EngineDeadError:
        try:
            code: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return EngineDeadError(f"the engine process ended (exit code {code}); its requests are lost, start a new engine")

    def _end(self, error: EngineDeadError) -> None:
        if self._dead is None:
            self._dead = error
            for stream in self._streams.values():
                stream.queue.put_nowait(error)
            while self._asked:
                self._answer(error)


def _environment() -> dict[str, str]:
    """This process's, with the folder that holds this very package on the path, and not the working directory."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _error(message: Failed) -> OctavoError:
    kind = getattr(errors, message.kind, OctavoError)
    error = kind(message.message)
    return error if isinstance(error, OctavoError) else OctavoError(message.message)
