"""Running requests in this process, with a look in between each two steps."""

from collections.abc import Callable, Iterator, Sequence

from octavo.core.outputs import RequestOutput
from octavo.core.request import Request
from octavo.engine.engine import Engine


def steps(engine: Engine, requests: Sequence[Request], add: Callable[[Request], None] | None = None) -> Iterator[list[RequestOutput]]:
    """Queue `requests`, then yield each step's deltas until all have ended.

    add: what queues one of them; None: `engine.add_request`.
    Leaving early aborts the rest and frees their memory.  After an exception (an interrupt inside a step) nothing is left behind.
    """
    waiting = {request.request_id for request in requests}
    try:
        for request in requests:
            (add or engine.add_request)(request)
        while waiting and engine.has_work:
            outputs = engine.step()
            waiting.difference_update(output.request_id for output in outputs if output.finished)
            yield outputs
    except GeneratorExit:
        raise
    except BaseException:
        engine.reset()
        raise
    finally:
        for request_id in waiting:
            engine.abort(request_id)
