"""Files that a user wrote: text, or one line that says which option names what is none."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from inferir.ir.errors import InferirError
from inferir.ir.system import text_file
from inferir.ir.system.text_file import read_text


def test_text(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for raw, text in ((b"", ""), ("é\n".encode(), "é\n"), (b"\xef\xbb\xbf{}", "{}")):
        file.write_bytes(raw)
        assert read_text(file, "--x") == text


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"from a pipe",))
    writer.start()
    assert read_text(pipe, "--x") == "from a pipe"
    writer.join()


def test_what_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_BYTES", 1 << 20)
    odd = tmp_path / os.fsdecode(b"odd\xff")
    odd.write_bytes(b"a\xff")
    (tmp_path / "nul").write_bytes(b"a\0b")
    cases = {
        odd: "is not text in UTF-8",
        tmp_path / "nul": "holds a NUL character",
        tmp_path: "Is a directory",
        tmp_path / "missing": "No such file or directory",
        tmp_path / ("x" * 5000): "File name too long",
        Path("/dev/zero"): "is larger than 1 MiB",
        Path("a\0b"): "embedded null byte",
    }
    for file, reason in cases.items():
        with pytest.raises(InferirError, match=rf"^--x {re.escape(str(file))}: {reason}"):
            read_text(file, "--x")
