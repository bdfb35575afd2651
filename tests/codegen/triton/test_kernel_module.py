"""Generated source on disk."""

import threading
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.triton.kernel_module import load_function, write_module
from inferir.ir.errors import CodegenError


def test_files_are_named_by_content_and_written_once(tmp_path: Path) -> None:
    one, other = write_module("x = 1\n", tmp_path), write_module("x = 2\n", tmp_path)
    assert one != other
    stamp = one.stat().st_mtime_ns
    assert write_module("x = 1\n", tmp_path) == one
    assert one.stat().st_mtime_ns == stamp
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".py", ".py"]
    one.write_text("damaged", encoding="utf-8")
    assert write_module("x = 1\n", tmp_path).read_text(encoding="utf-8") == "x = 1\n"


def test_writers_at_the_same_time_leave_whole_files(tmp_path: Path) -> None:
    text = "x = 1\n" * 5000
    threads = [threading.Thread(target=write_module, args=(text, tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.read_text(encoding="utf-8") for p in tmp_path.iterdir()] == [text]


def test_every_kernel_stands_at_the_same_line(case: Any, tmp_path: Path) -> None:
    """Triton's cache keys and error messages hold the line, so it may not vary."""
    lines = case.kernel.source.splitlines()
    assert lines[5] == "@triton.jit"
    assert lines[6].startswith(f"def {case.kernel.name}(")
    assert load_function(write_module(case.kernel.source, tmp_path), case.kernel.name).starting_line_number == 6


def test_a_module_that_does_not_import_is_named(tmp_path: Path) -> None:
    path = write_module("raise ValueError('no')\n", tmp_path)
    with pytest.raises(CodegenError, match=rf"{path.name}: ValueError: no"):
        load_function(path, "k")
    with pytest.raises(CodegenError, match="AttributeError"):
        load_function(write_module("x = 1\n", tmp_path), "k")
