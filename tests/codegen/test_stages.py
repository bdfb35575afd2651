"""Stages from files: what they replace, what they are called, and that nothing else is built or found by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_limits import limits

from inferir.codegen.backend import BucketMeta, BuildJob, Context, LoweredBucket, LoweredKernel
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import BuiltBucket, build_buckets, dump_stages
from inferir.codegen.stages import Stages, read_stages
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str


class Joiner:
    """A backend whose modules are its kernels' sources, one per line, and whose libraries are modules in capitals."""

    name = "joiner"
    suffix = ".bin"

    def __init__(self) -> None:
        self.built: list[str] = []

    def key(self, regions: Any, context: Context) -> dict[str, Any]:
        return {"generator": "1"}

    def lower(self, regions: Any, context: Context) -> LoweredBucket:
        names = [f"k{i}_{r.attrs['name']}" for i, r in enumerate(regions.values())]
        records = [
            LoweredKernel(name=n, region=d, anchor="rowwise", params=(), args=(), tile={})
            for n, d in zip(names, regions, strict=True)
        ]
        kernels = tuple(Kernel(n, f"{n} for {context.bucket.name}") for n in names)
        return LoweredBucket(kernels, BucketMeta(kernels=tuple(records)))

    def module(self, kernels: Sequence[Kernel]) -> str:
        return "\n".join(k.source for k in kernels)

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Any = None) -> list[bytes]:
        self.built += [job.name for job in jobs]
        return [job.source.upper().encode() for job in jobs]


def region(name: str) -> Node:
    b = Builder()
    x = b.input("x", TensorType((T, 8), DType.F32))
    body = Graph((x,), (b.op(f"tensor.{name}", x),))
    return b.node("kernel.region", (b.input("a", x.type),), {"anchor": "rowwise", "body": body, "name": name})


REGIONS = [region("exp"), region("tanh")]
CONTEXTS = [Context(b, Target.named("x86-64-v3"), limits()) for b in (Bucket(1, 2), Bucket(2, 5))]
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
