"""The loop around an engine: steps, and who gets what they bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_grammars import EngineGrammars
from inferir.runtime.requests.request import Request
from inferir.runtime.requests.update import Update

Taker = Callable[[Update], object]


class EngineLoop:
    """Drives an engine and compiles its grammars. One thread at a time may call it.

    A step's updates are handed out before the next step begins, since a CPU that computes has no core to spare for
    that; nobody waits for an answer that is there.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.grammars = EngineGrammars(engine)
        self._takers: dict[str, Taker] = {}

    def add(self, requests: Mapping[Request, Taker]) -> None:
        """Queue requests, or none of them; each one's taker gets its updates. Raises what `Engine.queue` does."""
        self.engine.queue(list(requests))
        self._takers |= {request.id: taker for request, taker in requests.items()}

    def turn(self) -> None:
        """Run a step and hand out what it brought."""
        for update in self.engine.step():
            name = update.request.id
            taker = self._takers[name] if update.finish_reason is None else self._takers.pop(name)
            taker(update)

    def abort(self, request_id: str) -> Update | None:
        """Stop a request now; its last update, which its taker does not get. None if it is not being served."""
        self._takers.pop(request_id, None)
        return self.engine.abort(request_id)

    def close(self) -> None:
        """Stop the engine; unfinished requests end with "abort"."""
        self._takers.clear()
        self.grammars.close()
        self.engine.close()
