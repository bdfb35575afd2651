"""Compiling grammars beside the engine's loop, each within limits, the same one only once."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from inferir.ir.errors import EngineError, InferirError, RequestError
from inferir.runtime.structured import binding
from inferir.runtime.structured.build import Job, Result
from inferir.runtime.structured.grammar import Grammar
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary
from inferir.runtime.structured.worker import Setup, receive, send
from inferir.runtime.tokenizer import Tokenizer

_LAST_WORDS = 1.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """seconds, memory_bytes: time and memory growth of one compilation. grammar_bytes: size of a compiled grammar.
    step_seconds: processor time that one token may take in a compiled grammar. workers: compilations at once, each in a
    process of its own. pending: compilations queued or running. cache_bytes, cache_entries: compiled grammars kept.
    """

    seconds: float = 5.0
    memory_bytes: int = 192 << 20
    grammar_bytes: int = 16 << 20
    step_seconds: float = 0.05
    workers: int = 2
    pending: int = 256
    cache_bytes: int = 128 << 20
    cache_entries: int = 1024


class GrammarCompiler:
    """Compiles specifications for one vocabulary; thread-safe. Processes and libraries come with the first one."""

    def __init__(self, vocabulary: Vocabulary | Callable[[], Vocabulary], limits: GrammarLimits | None = None) -> None:
        """vocabulary: itself, or what makes it when the first grammar is compiled, off the caller's thread."""
        self._vocabulary = vocabulary
        self.limits = limits or GrammarLimits()
        self._pool = ThreadPoolExecutor(self.limits.workers, "inferir-grammar")
        self._local = threading.local()
        self._workers: list[_Worker] = []
        self._info: Any = None
        self._lock = threading.Lock()
        self._prepared = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Future[Grammar]] = OrderedDict()
        self._cached_bytes = 0
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
        limit, and `EngineError` if grammars cannot be compiled at all. Raises `RequestError` if too many are waiting.
        """
        key = (spec.digest, spec.source)
        with self._lock:
            if self._closed:
                raise EngineError("the grammar compiler is closed")
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
            if self._pending >= self.limits.pending:
                raise spec.error("too many grammars are waiting to be compiled; try again later")
            self._pending += 1
            future: Future[Grammar] = Future()
            future.set_running_or_notify_cancel()
            self._cache[key] = future
            self._pool.submit(self._run, key, spec, future)
        return future

    def close(self) -> None:
        """End the worker processes. Compilations under way fail."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
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
        except Exception as e:
            error = e if isinstance(e, InferirError) else EngineError(f"compiling a grammar failed: {e!r}")
        with self._lock:
            self._pending -= 1
            if grammar is not None:
                self._cached_bytes += grammar.memory_bytes
            elif isinstance(error, _WorkerDiedError) or not isinstance(error, RequestError):
                self._cache.pop(key, None)  # it may work next time
            self._evict()
        if grammar is not None:
            future.set_result(grammar)
        else:
            future.set_exception(error)

    def _evict(self) -> None:
        over = [k for k, f in self._cache.items() if f.done()]
        for key in over:
            if self._cached_bytes <= self.limits.cache_bytes and len(self._cache) <= self.limits.cache_entries:
                return
            future = self._cache.pop(key)
            if future.exception() is None:
                self._cached_bytes -= future.result().memory_bytes

    def _make(self, spec: StructuredSpec) -> Grammar:
        start = time.monotonic()
        limits = self.limits
        job = Job(spec.kind, spec.value, limits.step_seconds, limits.grammar_bytes)
        core, vocabulary, info = self._prepare()
        worker = self._worker(vocabulary)
        result = worker.run(job)
        if result is None:
            ended = "needs too much memory or fails"
            if worker.timed_out:
                ended = f"takes more than {limits.seconds:g} s"
            raise _WorkerDiedError(f"{spec.source}: compiling it {ended}; make it simpler", spec.source)
        if result.grammar is None:
            raise spec.error(result.reason or "it cannot be compiled")
        grammar = Grammar(core, core.deserialize(result.grammar, info), vocabulary)
        log.debug("compiled a %s grammar in %.3f s", spec.kind, time.monotonic() - start)
        return grammar

    def _prepare(self) -> tuple[binding.Core, Vocabulary, Any]:
        """The core, and the vocabulary in both of its forms."""
        core = binding.load()
        with self._prepared:
            if callable(self._vocabulary):
                self._vocabulary = self._vocabulary()
            vocabulary = self._vocabulary
            if self._info is None:
                self._info = core.tokenizer_info(vocabulary.tokens, vocabulary.stop_ids)
        return core, vocabulary, self._info

    def _worker(self, vocabulary: Vocabulary) -> _Worker:
        """This thread's worker process, started if it is not there."""
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None or not worker.alive:
            worker = _Worker()
            with self._lock:
                if self._closed:
                    worker.stop()
                    raise EngineError("the grammar compiler is closed")
                self._workers = [w for w in self._workers if w.alive] + [worker]
            worker.start(Setup(vocabulary, self.limits.seconds, self.limits.memory_bytes))
            self._local.worker = worker
        return worker


class _WorkerDiedError(RequestError):
    """A compilation that did not come to an end. It is not remembered: a busy machine may be the reason."""


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "inferir.runtime.structured.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.alive = True

    def start(self, setup: Setup) -> None:
        if self._exchange(setup) is None:
            raise EngineError("the process that compiles grammars did not start")

    def run(self, job: Job) -> Result | None:
        """The result of `job`; None if the process died of it."""
        return self._exchange(job)

    @property
    def timed_out(self) -> bool:
        """Whether the process was ended by its own timer."""
        return self._process.returncode == -signal.SIGALRM

    def stop(self) -> None:
        self.alive = False
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _exchange(self, message: msgspec.Struct) -> Result | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            send(stdin, message)  # type: ignore[arg-type]
            data = receive(stdout)  # type: ignore[arg-type]
        except (OSError, ValueError):  # ValueError: closed by `stop`
            data = None
        if data is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS)  # it is ending; its status says why
            self.stop()
            return None
        return msgspec.msgpack.decode(data, type=Result)
