"""Run one request in this thread, give out its text as it comes, and measure it. Ctrl-C ends the request, not us."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from inferir.ir.system.quantities import count, seconds

if TYPE_CHECKING:
    from inferir.api.llm import LLM, SamplingParams


@dataclass(frozen=True)
class Answer:
    """A finished request: its text, tokens and times in seconds. finish_reason "abort" means that Ctrl-C ended it."""

    text: str
    prompt_tokens: int
    tokens: int
    first_token: float
    total: float
    finish_reason: str

    @property
    def interrupted(self) -> bool:
        return self.finish_reason == "abort"

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first; None for fewer than two tokens."""
        later = self.total - self.first_token
        return (self.tokens - 1) / later if self.tokens > 1 and later > 0 else None

    def stats(self) -> str:
        """One line for people."""
        parts = [
            f"{count(self.prompt_tokens, 'prompt token')}",
            f"{count(self.tokens, 'token')} in {seconds(self.total)}",
            f"first after {seconds(self.first_token)}",
        ]
        if self.rate is not None:
            parts.append(f"then {self.rate:.1f} tokens/s")
        end = {"length": "ended by the token limit", "abort": "stopped by Ctrl-C"}.get(self.finish_reason)
        return ", ".join([*parts, end] if end else parts)


def answer(llm: LLM, prompt: Sequence[int], params: SamplingParams, write: Callable[[str], None]) -> Answer:
    """Complete `prompt`, passing text to `write` as it comes. The engine must be idle.

    Raises `RequestError` for what cannot be served, a structure that cannot be compiled included.
    """
    engine = llm.engine
    start = time.perf_counter()
    first = 0.0
    parts: list[str] = []
    grammar = llm.grammar(params)
    if grammar is not None:
        grammar.result()  # a specification that cannot be used is refused here
    request = engine.add_request(prompt, params, grammar=grammar)
    try:
        with interrupt_flag() as interrupted:
            while request.finish_reason is None:
                updates = [engine.abort(request.id)] if interrupted.is_set() else engine.step()
                for update in updates:
                    if update is None:
                        continue
                    if update.token is not None and not first:
                        first = time.perf_counter() - start
                    if update.text:
                        parts.append(update.text)
                        write(update.text)
    finally:
        if request.finish_reason is None:
            engine.abort(request.id)
    total = time.perf_counter() - start
    assert request.finish_reason is not None
    return Answer("".join(parts), len(request.prompt), len(request.outputs), first, total, request.finish_reason)


def has_chat_template(artifact: Path) -> bool:
    """Whether the artifact can turn messages into a prompt."""
    from inferir.runtime.text.chat_templates import ChatTemplates

    return ChatTemplates.load(artifact / "tokenizer") is not None


def write(text: str) -> None:
    """Show a piece of an answer at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """Inside, the first Ctrl-C sets the event instead of raising `KeyboardInterrupt`; a second one raises."""
    event = threading.Event()
    with on_interrupt(event.set):
        yield event


@contextmanager
def on_interrupt(call: Callable[[], object]) -> Iterator[None]:
    """Inside, the first Ctrl-C makes a call instead of raising `KeyboardInterrupt`; a second one raises."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    called = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal called
        if called:
            raise KeyboardInterrupt
        called = True
        call()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
