"""Stages from files: what they replace, what they are called, and that nothing else is built or found by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from joiner_backend import Joiner, context, region

from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import BuiltBucket, build_buckets, dump_stages
from inferir.codegen.stages import Stages, read_stages
from inferir.ir.errors import CodegenError

REGIONS = [region("exp"), region("tanh")]
CONTEXTS = [context(1, 2), context(2, 5)]
TEXT = "k0_exp for t1\nk1_tanh for t1"


def put(folder: Path, **files: str) -> Path:
    """Files for the bucket t1; the last underscore of a name is its dot."""
    (folder / "t1").mkdir(parents=True)
    for name, text in files.items():
        (folder / "t1" / ".".join(name.rsplit("_", 1))).write_text(text)
    return folder


def build(backend: Joiner, cache: CompileCache, folder: Path | None = None) -> list[BuiltBucket]:
    stages = read_stages(folder, [c.bucket.name for c in CONTEXTS]) if folder else {}
    return build_buckets(backend, REGIONS, CONTEXTS, cache, stages=stages)


@pytest.mark.parametrize(
    ("files", "text", "library"),
    [
        ({"k1_tanh_py": "mine"}, "k0_exp for t1\nmine", b"K0_EXP FOR T1\nMINE"),
        ({"module_py": "all mine"}, "all mine", b"ALL MINE"),
        ({"module_bin": "ready"}, TEXT, b"ready"),
    ],
)
def test_any_stage_may_come_from_a_file(tmp_path: Path, files: dict[str, str], text: str, library: bytes) -> None:
    backend = Joiner()
    first, second = build(backend, CompileCache(None), put(tmp_path, **files))
    assert (first.source, first.library) == (text, library)
    assert list(first.replaced) == [".".join(name.rsplit("_", 1)) for name in files]
    made = {k.name: k.made_by for k in first.records({})}
    assert made == {"k0_exp": "", "k1_tanh": "--override" if "k1_tanh_py" in files else ""}
    assert (second.library, second.replaced) == (b"K0_EXP FOR T2-4\nK1_TANH FOR T2-4", {})
    assert backend.built == (["t2-4"] if "module_bin" in files else ["t1", "t2-4"])


def test_what_was_replaced_is_never_found_as_what_is_generated(tmp_path: Path) -> None:
    backend, cache = Joiner(), CompileCache(None)
    edited = build(backend, cache, put(tmp_path / "a", k0_exp_py="mine"))
    plain = build(backend, cache)
    other = build(backend, cache, put(tmp_path / "b", k0_exp_py="yours"))
    assert plain[0].source == TEXT
    assert len({b[0].library for b in (edited, plain, other)}) == 3
    assert backend.built == ["t1", "t2-4", "t1", "t1"]
    again = build(backend, cache, tmp_path / "a")
    assert (again[0].library, again[0].replaced) == (edited[0].library, edited[0].replaced)
    assert len(backend.built) == 4


def test_what_is_dumped_can_be_given_back(tmp_path: Path) -> None:
    backend, cache = Joiner(), CompileCache(None)
    built = build(backend, cache)
    dump_stages(tmp_path / "dump", backend, REGIONS, CONTEXTS, built, {})
    assert sorted(p.name for p in (tmp_path / "dump" / "t1").iterdir()) == [
        "k0_exp.py",
        "k1_tanh.py",
        "module.bin",
        "module.py",
    ]
    for name in ("k0_exp.py", "module.py", "module.bin"):
        content = (tmp_path / "dump" / "t1" / name).read_bytes()
        again = build_buckets(backend, REGIONS, CONTEXTS, cache, stages={"t1": Stages("t1", {name: content})})
        assert (again[0].source, again[0].library) == (built[0].source, built[0].library)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"k9_exp_py": ""}, r"t1/k9_exp\.py replaces nothing; stages are module\.bin, module\.py, k0_exp\.py, k1_tanh"),
        ({"k0_exp_py": "x", "module_py": "y"}, r"t1/module\.py replaces what is made of k0_exp\.py"),
        ({}, "there is no stage in it"),
    ],
)
def test_files_that_replace_nothing_are_refused(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    backend = Joiner()
    with pytest.raises(CodegenError, match=reason):
        build(backend, CompileCache(None), put(tmp_path, **files))
    assert backend.built == []


def test_folders_of_no_bucket_and_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    put(tmp_path / "a", module_py="x")
    (tmp_path / "a" / "t9").mkdir()
    with pytest.raises(CodegenError, match=r"t9: there is no bucket t9; buckets are t1, t2-4"):
        read_stages(tmp_path / "a", ["t1", "t2-4"])
    for bad in ("a/t1/module.py", "missing"):
        with pytest.raises(CodegenError, match=f"{bad}: cannot be read"):
            read_stages(tmp_path / bad, ["t1"])
    with pytest.raises(CodegenError, match="is no UTF-8 text"):
        Stages("t1", {"module.py": b"\xff"}).text("module.py")
