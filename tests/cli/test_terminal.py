"""The commands in a real terminal (a pseudo-terminal): progress bars, chat with Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MAIN = "from inferir.cli.main import main; main()"
SLOW = "import time, inferir.cli.streaming as s; w = s.write; s.write = lambda t: (w(t), time.sleep(0.1)); "
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def interruptible() -> None:
    """Undo an ignored Ctrl-C that a test run in the background hands down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A Python program at a pseudo-terminal."""

    def __init__(self, code: str, *args: str) -> None:
        self.master, slave = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        command = [sys.executable, "-c", code, *args]
        self.child = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
            preexec_fn=interruptible,
        )
        os.close(slave)
        self.text = ""

    def until(self, wanted: str, seconds: float = 60) -> str:
        """Read until the pattern `wanted` has been printed; returns what was printed since the last call."""
        end = time.monotonic() + seconds
        while not (found := re.search(wanted, self.text)):
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            data = os.read(self.master, 4096) if ready else b""
            assert data, f"{wanted!r} did not come: {self.text!r}"
            self.text += ESCAPES.sub("", data.decode(errors="replace"))
        printed, self.text = self.text[: found.end()], self.text[found.end() :]
        return printed

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> None:
        self.child.send_signal(signal.SIGINT)

    def interrupt_until(self, wanted: str) -> str:
        """Interrupt until `wanted` is printed: one that comes between a prompt and the wait for input is lost."""
        for _ in range(30):
            self.interrupt()
            try:
                return self.until(wanted, 2)
            except AssertionError:
                continue
        return self.until(wanted, 2)

    def end(self) -> int:
        """Wait for the program; everything it still prints is read."""
        while True:
            try:
                if not os.read(self.master, 4096):
                    break
            except OSError:  # the other side is closed
                break
        return self.child.wait(60)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(code: str, *args: object) -> Terminal:
        opened.append(Terminal(code, *map(str, args)))
        return opened[-1]

    yield start
    for t in opened:
        t.child.kill()
        t.child.wait()
        os.close(t.master)


def test_chat(terminal: Callable[..., Terminal], tiny_artifact: Path) -> None:
    chat = terminal(SLOW + MAIN, "chat", tiny_artifact, "--temperature", "3", "--seed", "1")
    assert "128 tokens of context. /help for commands." in chat.until("> ")
    chat.send("hello\r")
    chat.until(r"hello\r\n.")
    chat.interrupt()
    chat.until(r"…\(stopped\)\r\n> ")
    chat.interrupt_until(r"\(/exit or Ctrl-D leaves\)\r\n> ")
    chat.send("/help\r")
    assert "/reset" in chat.until("stop the answer\r\n> ")
    chat.send("\x04")
    assert chat.end() == 0


def test_run_needs_a_prompt_at_a_terminal(terminal: Callable[..., Terminal], tiny_artifact: Path) -> None:
    run = terminal(MAIN, "run", tiny_artifact)
    run.until("give a prompt")
    assert run.end() == 2


def test_progress_bars_are_drawn_at_a_terminal(terminal: Callable[..., Terminal]) -> None:
    code = """
from inferir.cli.console import progress_bars
with progress_bars() as report:
    report("kernels", 0, 3)
    for done in range(1, 4):
        report("kernels", done, 3)
print("end")
"""
    drawn = terminal(code).until("end")
    assert re.search(r"kernels .*━+.* 3/3 ", drawn)


def test_nothing_is_drawn_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    from inferir.cli.console import progress_bars

    with progress_bars() as report:
        assert report is None
    assert capsys.readouterr() == ("", "")
