"""Standard streams that are closed, full, left by their reader, not blocking, or in an odd encoding."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inferir.cli.streams import text_of
from inferir.ir.errors import InferirError

PREPARED = "from inferir.cli import streams; streams.prepare(); import os, sys; "


def python(code: str, close: tuple[int, ...] = (), **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program with prepared streams, some of its standard descriptors closed before it starts."""

    def shut() -> None:
        for number in close:
            os.close(number)

    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
    return subprocess.run([sys.executable, "-c", PREPARED + code], preexec_fn=shut, timeout=60, check=False, **given)


def test_closed_descriptors_are_taken(tmp_path: Path) -> None:
    """A file opened later must not become standard output, where a stray line would be written into it."""
    code = f"f = open({str(tmp_path / 'file')!r}, 'w'); g = open('/dev/null'); sys.exit(min(f.fileno(), g.fileno()))"
    for close in ((0,), (1,), (2,), (0, 1, 2)):
        assert python(code, close).returncode > 2, close


def test_closed_input_is_at_its_end() -> None:
    assert (
        python("print(ascii(streams.read_text('x')), ascii(streams.read_text('x', line=True)))", (0,)).stdout
        == b"'' ''\n"
    )


def test_closed_errors_do_no_harm() -> None:
    done = python("print('lost', file=sys.stderr, flush=True); os.write(2, b'lost'); print('here')", (2,))
    assert (done.returncode, done.stdout) == (0, b"here\n")


@pytest.mark.parametrize("kind", ["closed", "full", "left"])
def test_output_fails_once(kind: str, tmp_path: Path) -> None:
    code = """
for _ in range(2):
    try:
        print("x", flush=True)
        print("silent", file=sys.stderr)
    except streams.OutputError as error:
        print(error.errno, error.closed, file=sys.stderr)
"""
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "w") as full:
        targets: dict[str, Any] = {"closed": None, "full": full, "left": writing}
        done = python(code.replace("\n", "\n", 1), (1,) if kind == "closed" else (), stdout=targets[kind])
    os.close(writing)
    number = {"closed": errno.EBADF, "full": errno.ENOSPC, "left": errno.EPIPE}[kind]
    assert done.stderr.decode().splitlines() == [f"{number} {kind != 'full'}", "silent"]
    assert done.returncode == 0


def test_output_that_does_not_block_is_waited_for() -> None:
    """A neighbour on the same pipe may have made it so; nothing may be lost then."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    got: list[bytes] = []

    def read() -> None:
        time.sleep(0.3)
        with open(reading, "rb") as source:
            got.append(source.read())

    reader = threading.Thread(target=read)
    reader.start()
    done = python("print('x' * 300_000, flush=True)", stdout=writing)
    os.close(writing)
    reader.join()
    assert done.returncode == 0, done.stderr
    assert got == [b"x" * 300_000 + b"\n"]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", rb"\xe9 \U0001f600 \xff"),
        ("latin-1:strict", b"\xe9 \\U0001f600 \\xff"),
        ("utf-8:strict", "é 😀 \\xff".encode()),
        ("utf-8:surrogateescape", "é 😀 \\xff".encode()),
        ("ascii:replace", b"? ? ?"),
    ],
)
def test_what_an_encoding_lacks_is_written_out(encoding: str, shown: bytes) -> None:
    code = r"print('\xe9 \U0001f600 \udcff'); print('\xe9 \U0001f600 \udcff', file=sys.stderr)"
    done = python(code, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stdout) == (0, shown + b"\n")


def test_input_is_decoded_by_its_encoding() -> None:
    assert text_of("é\r\nb\r".encode(), "utf-8", "x") == "é\nb\n"
    assert text_of("é".encode(), "ascii", "x") == "é"
    assert text_of(b"\xe9", "iso8859-1", "x") == "é"
    for data, encoding in ((b"\xff", "utf-8"), (b"\xff", "ascii"), (b"ab", "utf-16")):
        with pytest.raises(InferirError, match=r"^the prompt is not UTF-(8|16)$"):
            text_of(data, encoding, "the prompt")
