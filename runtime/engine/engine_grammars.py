"""Grammars for the requests of one engine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from inferir.ir.errors import RequestError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.requests.request import Grammar

if TYPE_CHECKING:
    from inferir.runtime.structured import GrammarCompiler, StructuredSpec


class EngineGrammars:
    """Compiles grammars for an engine's vocabulary, in threads of their own; nothing is loaded before the first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._compiler: GrammarCompiler | None = None

    def compile(self, spec: StructuredSpec) -> Future[Grammar]:
        """Start to compile a grammar; the future raises `RequestError` if that cannot be done.

        Raises `RequestError` naming the field if the engine cannot follow grammars, `QueueFullError` if too many wait.
        """
        engine = self._engine
        if "bitmask" not in engine.executor.inputs:
            raise RequestError("the artifact was compiled without structured output; compile it again", spec.source)
        if engine.tokenizer is None:
            raise RequestError("structured output needs a tokenizer, and the artifact has none", spec.source)
        if self._compiler is None:
            from inferir.runtime.structured import GrammarCompiler

            limits = engine.limits
            self._compiler = GrammarCompiler.of(engine.tokenizer, limits.vocab_size, limits.eos_token_ids)
        future: Any = self._compiler.compile_async(spec)
        return cast("Future[Grammar]", future)

    def close(self) -> None:
        """End the threads."""
        if self._compiler is not None:
            self._compiler.close()
            self._compiler = None
