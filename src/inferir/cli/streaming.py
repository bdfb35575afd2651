"""Run one request in this thread, give out its text as it comes, and measure it. Ctrl-C ends the request, not us."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from inferir.ir.system.quantities import count, seconds

if TYPE_CHECKING:
    from inferir.api.llm import LLM, SamplingParams

Message = dict[str, str]


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
    """Complete `prompt`, passing text to `write` as it comes.

    Raises `RequestError` for what cannot be served, a structure that cannot be compiled included.
    """
    start = time.monotonic()
    stream = llm.stream(prompt, params)
    try:
        with on_interrupt(stream.stop):
            for text in stream:
                write(text)
    finally:
        stream.close()
    whole = stream.output
    first = whole.outputs[0].timing.first_token
    return Answer(
        whole.text,
        len(whole.prompt_token_ids),
        len(whole.token_ids),
        0.0 if first is None else first - start,
        time.monotonic() - start,
        whole.finish_reason,
    )


def write(text: str) -> None:
    """Show a piece of an answer at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


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
