"""Compiling grammars beside the engine's loop, each within limits, the same one only once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import EngineError, InferirError, QueueFullError, RequestError
from inferir.runtime.structured import binding
from inferir.runtime.structured.grammar import Grammar
from inferir.runtime.structured.grammar_build import build
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary
from inferir.runtime.text.tokenizer import Tokenizer

_NICE = 5
_STACK_BYTES = 64 << 20  # the core descends into nested and chained definitions; only what is used takes memory
_STACKS = threading.Lock()
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """items_in_row, step_items: items of the parser at one place of a text, and for one mask. compile_fuel, step_fuel:
    work of the lexer when a grammar is compiled, and for one mask. lexer_states: what the lexer keeps of a grammar.
    grammar_symbols: size of a grammar. step_seconds: processor time that one token may take in a compiled grammar.
    workers: compilations at once. pending: compilations queued or running. cache_entries: compiled or refused
    specifications that are remembered. cache_steps: masks that remembered grammars have filled, together.
    """

    items_in_row: int = 4_000
    step_items: int = 20_000
    compile_fuel: int = 500_000
    step_fuel: int = 200_000
    lexer_states: int = 100_000
    grammar_symbols: int = 250_000
    step_seconds: float = 0.05
    workers: int = 2
    pending: int = 256
    cache_entries: int = 256
    cache_steps: int = 5_000


class GrammarCompiler:
    """Compiles specifications for one vocabulary; thread-safe. The library and threads come with the first one."""

    def __init__(self, vocabulary: Vocabulary | Callable[[], Vocabulary], limits: GrammarLimits | None = None) -> None:
        """vocabulary: itself, or what makes it when the first grammar is compiled, off the caller's thread."""
        self._vocabulary = vocabulary
        self.limits = limits or GrammarLimits()
        self._pool = ThreadPoolExecutor(self.limits.workers, "inferir-grammar", _lower_priority)
        self._tokenizer: Any = None
        self._lock = threading.Lock()
        self._prepared = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Future[Grammar]] = OrderedDict()
        self._pending = 0
        self._closed = False

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> GrammarCompiler:
        """A compiler for an artifact; what `Vocabulary.of` raises comes with the first future."""
        stops = tuple(stop_ids)
        return GrammarCompiler(lambda: Vocabulary.of(tokenizer, vocab_size, stops))

    def compile(self, spec: StructuredSpec) -> Grammar:
        """Wait for `compile_async`."""
        return self.compile_async(spec).result()

    def compile_async(self, spec: StructuredSpec) -> Future[Grammar]:
        """The grammar of `spec`, soon. Equal specifications share one future, which cannot be cancelled.

        The future raises `RequestError` naming the field and the reason if the specification is wrong or exceeds a
        limit, and `EngineError` if grammars cannot be compiled at all. Raises `QueueFullError` if too many are waiting.
        """
        key = (spec.digest, spec.source)
        with self._lock:
            if self._closed:
                raise EngineError("the grammar compiler is closed")
            self._evict()
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
            if self._pending >= self.limits.pending:
                raise QueueFullError(
                    f"{self._pending} grammars are waiting to be compiled; try again later", self._pending
                )
            self._pending += 1
            future: Future[Grammar] = Future()
            future.set_running_or_notify_cancel()
            self._cache[key] = future
            with _STACKS:  # threads start within `submit`, and the size of their stacks is the process's
                before = threading.stack_size(_STACK_BYTES)
                try:
                    self._pool.submit(self._run, key, spec, future)
                finally:
                    threading.stack_size(before)
        return future

    def close(self) -> None:
        """End the threads, once they are through with what they compile. What waits fails."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            for future in self._cache.values():
                if not future.done():
                    future.set_exception(EngineError("the grammar compiler was closed"))

    def _run(self, key: tuple[str, str], spec: StructuredSpec, future: Future[Grammar]) -> None:
        grammar: Grammar | None = None
        error: Exception | None = None
        try:
            grammar = self._make(spec)
        except BaseException as e:  # a panic of the core derives from BaseException
            error = e if isinstance(e, InferirError) else EngineError(f"compiling a grammar failed: {e!r}")
        with self._lock:
            self._pending -= 1
            if error is not None and not isinstance(error, RequestError):
                self._cache.pop(key, None)  # it may work next time
        if grammar is not None:
            future.set_result(grammar)
        else:
            future.set_exception(error)

    def _evict(self) -> None:
        """Forget grammars that failed, and the oldest while there are too many, or what they have learnt is too much.

        What the lexer of a grammar learns on the way grows with the masks that it has filled.
        """
        done = {k: f.result() for k, f in self._cache.items() if f.done() and f.exception() is None}
        for key, grammar in done.items():
            if grammar.broken or grammar.steps > self.limits.cache_steps:
                del self._cache[key]
        steps = sum(done[k].steps for k in self._cache if k in done)
        for key in [k for k, f in self._cache.items() if f.done()]:
            if steps <= self.limits.cache_steps and len(self._cache) < self.limits.cache_entries:
                return
            del self._cache[key]
            steps -= done[key].steps if key in done else 0

    def _make(self, spec: StructuredSpec) -> Grammar:
        start = time.monotonic()
        limits = self.limits
        core, vocabulary, tokenizer = self._prepare()
        bounds = core.limits(
            max_items_in_row=limits.items_in_row,
            step_max_items=limits.step_items,
            initial_lexer_fuel=limits.compile_fuel,
            step_lexer_fuel=limits.step_fuel,
            max_lexer_states=limits.lexer_states,
            max_grammar_size=limits.grammar_symbols,
        )
        grammar = build(core, tokenizer, vocabulary, spec, bounds, limits.step_seconds)
        log.debug("compiled a %s grammar in %.3f s", spec.kind, time.monotonic() - start)
        return grammar

    def _prepare(self) -> tuple[binding.Core, Vocabulary, Any]:
        """The core, and the vocabulary in both of its forms."""
        core = binding.load()
        with self._prepared:
            if callable(self._vocabulary):
                self._vocabulary = self._vocabulary()
            vocabulary = self._vocabulary
            if self._tokenizer is None:
                self._tokenizer = core.tokenizer(vocabulary)
        return core, vocabulary, self._tokenizer


def _lower_priority() -> None:
    """Compiling yields to the engine's threads: on Linux a thread has a priority of its own."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except OSError as e:
        log.debug("the priority of a grammar thread stays: %s", e)
