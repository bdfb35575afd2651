"""The loop around an engine: its grammars, its steps, and who gets what they bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from inferir.ir.errors import RequestError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.requests.request import Request, Update

if TYPE_CHECKING:
    from inferir.runtime.structured import Grammar, GrammarCompiler, StructuredSpec

Taker = Callable[[Update], object]


class EngineLoop:
    """Drives an engine and compiles its grammars. One thread at a time may call it.

    A step's updates are handed out before the next step begins, since a CPU that computes has no core to spare for
    that; nobody waits for an answer that is there.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._compiler: GrammarCompiler | None = None  # nothing of it is loaded before the first grammar
        self._takers: dict[str, Taker] = {}

    def compile(self, spec: StructuredSpec) -> Future[Grammar]:
        """Start to compile a grammar, in a thread of its own; the future raises `RequestError` if that cannot be done.

        Raises `RequestError` naming the field if the engine cannot follow grammars, `QueueFullError` if too many wait.
        """
        engine = self.engine
        if "bitmask" not in engine.executor.inputs:
            raise RequestError("the artifact was compiled without structured output; compile it again", spec.source)
        if engine.tokenizer is None:
            raise RequestError("structured output needs a tokenizer, and the artifact has none", spec.source)
        if self._compiler is None:
            from inferir.runtime.structured import GrammarCompiler

            limits = engine.limits
            self._compiler = GrammarCompiler.of(engine.tokenizer, limits.vocab_size, limits.eos_token_ids)
        return self._compiler.compile_async(spec)

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
        if self._compiler is not None:
            self._compiler.close()
            self._compiler = None
        self.engine.close()
