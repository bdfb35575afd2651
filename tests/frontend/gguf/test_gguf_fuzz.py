"""GGUF files that are wrong in one way each are read right or refused in one line (more: benchmarks/fuzz_gguf.py)."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from gguf_mutations import ANY, CHANGES, ERROR, SAME, Case, Result, bases, generate, judge, load

CASES = tuple(generate(seed=2, count=7 * len(CHANGES)))


@functools.cache
def _unchanged(base: str, folder: Path) -> Result:
    folder.mkdir(exist_ok=True)
    return load(bases()[base].write(folder / f"{base}.gguf"))


@pytest.mark.parametrize("change", range(len(CHANGES)), ids=[c.__name__ for c in CHANGES])
def test_a_file_that_is_wrong_in_one_way(change: int, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    folder = tmp_path_factory.getbasetemp() / "unchanged"
    for case in CASES[change :: len(CHANGES)]:
        path = tmp_path / f"{case.base}-changed.gguf"
        path.write_bytes(case.data)
        unchanged = _unchanged(case.base, folder)
        assert not unchanged.error
        assert judge(case, load(path), unchanged) == "", f"{case.base}: {case.what}"


def test_the_judge_sees_what_is_wrong() -> None:
    a, b, refused = Result(summary=(1,)), Result(summary=(2,)), Result(error="no")
    wanted = {ERROR: (False, False, True), SAME: (True, False, False), ANY: (True, True, True)}
    for expect, right in wanted.items():
        case = Case("llama", "x", b"", expect)
        assert tuple(judge(case, result, a) == "" for result in (a, b, refused)) == right
