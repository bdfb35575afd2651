"""Weight files: aligned, readable by the safetensors library, and all or nothing."""

import errno
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.weights import packing
from inferir.ir.contract import artifact
from inferir.ir.contract.manifest import ALIGNMENT
from inferir.ir.errors import ArtifactError
from inferir.ir.formats.int8_rows import FORMAT as INT8_ROWS
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.types import TensorType
from inferir.ir.system import atomic_file

TENSORS = {
    "a": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "b": torch.randn(7).to(torch.bfloat16),
    "ids": torch.arange(9, dtype=torch.int32),
}
TYPES = {
    "a": TensorType((3, 5), DType.F32),
    "b": TensorType((7,), DType.BF16),
    "ids": TensorType((9,), DType.I32),
    "twice": TensorType((6, 5), DType.F32),
}


def twice() -> Graph:
    b = Builder()
    a = b.weight("a", TYPES["a"])
    return Graph((), (b.op("tensor.cat", a, b.op("tensor.neg", a), dim=0),), ("value",))


def test_results_of_one_op_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    w = b.weight("w", TensorType((70, 8), DType.F32))
    results = INT8_ROWS.transform(b, w)
    transforms = {f"r{i}": Graph((), (v,), ("value",)) for i, v in enumerate(results)}
    types = {"a": TYPES["a"], **{name: transform.outputs[0].type for name, transform in transforms.items()}}
    tensors = {"a": TENSORS["a"], "w": torch.randn(70, 8)}
    runs: list[object] = []
    real = packing.interpret
    monkeypatch.setattr(packing, "interpret", lambda *args: runs.append(args) or real(*args))
    packing.write_weights(tmp_path / "w.safetensors", types, transforms, tensors.__getitem__, store())
    assert len(runs) == 1
    loaded = load_file(tmp_path / "w.safetensors")
    for i, want in enumerate(INT8_ROWS.pack(tensors["w"], Attrs({"valid": 70}))):
        assert torch.equal(loaded[f"r{i}"], want)


def store(root: Path | None = None, checkpoint: str = "c") -> packing.WeightCache:
    return packing.WeightCache(CompileCache(root), checkpoint, DType.F32)


def test_file_holds_tensors_and_transforms_at_aligned_offsets(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    steps: list[tuple[int, int]] = []
    packing.write_weights(path, TYPES, {"twice": twice()}, TENSORS.__getitem__, store(), lambda *s: steps.append(s))
    loaded = load_file(path)
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded[name], tensor)
    assert torch.equal(loaded["twice"], torch.cat([TENSORS["a"], -TENSORS["a"]]))
    raw = path.read_bytes()
    for name, record in packing.read_index(path, "weights/w.safetensors").items():
        assert record.file == "weights/w.safetensors"
        assert record.offset % ALIGNMENT == 0
        assert record.dtype is TYPES[name].dtype
        part = torch.frombuffer(
            bytearray(raw[record.offset : record.offset + record.nbytes]), dtype=torch_dtype(record.dtype)
        )
        assert torch.equal(part.reshape(record.shape), loaded[name])
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_large_pieces_are_written_whole_and_aligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache takes huge pages for them; a file system may take less of a piece than it was offered."""

    class File(FileIO):
        def write(self, content: memoryview) -> int:  # type: ignore[override]
            starts.append(self.tell())
            return super().write(content[: 96 if len(starts) == 2 else None])

    starts: list[int] = []
    expected, path = tmp_path / "expected", tmp_path / "w"
    packing.write_weights(expected, TYPES, {"twice": twice()}, TENSORS.__getitem__, store())
    monkeypatch.setattr(packing, "PIECE", 128)
    monkeypatch.setattr(atomic_file, "open", lambda path, mode, buffering: File(path, mode), raising=False)
    packing.write_weights(path, TYPES, {"twice": twice()}, TENSORS.__getitem__, store())
    assert path.read_bytes() == expected.read_bytes()
    assert starts == sorted([*range(0, path.stat().st_size, 128), 128 + 96])


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_total_bytes_counts_padding(sizes: list[int]) -> None:
    total = packing.total_bytes(TensorType((n,), DType.I8) for n in sizes)
    assert total == sum(-(-n // ALIGNMENT) * ALIGNMENT for n in sizes)


def test_a_finished_file_is_shared_with_the_cache(tmp_path: Path) -> None:
    def never(name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was loaded again")

    first, again, other = (tmp_path / n for n in ("first", "again", "other"))
    packing.write_weights(first, TYPES, {"twice": twice()}, TENSORS.__getitem__, store(tmp_path / "cache"))
    packing.write_weights(again, TYPES, {"twice": twice()}, never, store(tmp_path / "cache"))
    assert again.read_bytes() == first.read_bytes()
    assert again.samefile(first)
    with pytest.raises(AssertionError, match="loaded again"):
        packing.write_weights(other, TYPES, {"twice": twice()}, never, store(tmp_path / "cache", "another checkpoint"))


def test_what_the_cache_hashed_need_not_be_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a file is that of its content, made with the file or taken from the cache."""
    paths = [tmp_path / name / "w.safetensors" for name in ("made", "taken", "alone")]
    for path in paths:
        path.parent.mkdir()
    stores = [store(tmp_path / "cache"), store(tmp_path / "cache"), store()]
    made, taken, alone = (
        packing.write_weights(path, TYPES, {"twice": twice()}, TENSORS.__getitem__, kept)
        for path, kept in zip(paths, stores, strict=True)
    )
    assert made == taken == artifact.file_record(paths[0])
    assert alone is None
    assert made is not None
    monkeypatch.setattr(artifact, "file_record", lambda path: pytest.fail(f"{path} is hashed again"))
    assert artifact.file_records(paths[0].parent, {"w.safetensors": made}) == {"w.safetensors": made}


def test_tables_of_the_configuration_have_a_file_of_their_own() -> None:
    b = Builder()
    table = Graph((), (b.op("tensor.neg", b.weight("const.freq", TYPES["a"])),), ("value",))
    types = {"cos": TYPES["a"], "twice": TYPES["twice"], "a": TYPES["a"]}
    files = packing.weight_files(types, {"cos": table, "twice": twice()})
    assert {file: list(tensors) for file, tensors in files.items()} == {
        "model.safetensors": ["twice", "a"],
        "tables.safetensors": ["cos"],
    }
    assert list(packing.weight_files({"a": TYPES["a"]}, {})) == ["model.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        lambda types, transforms: (types | {"a": TensorType((5, 3), DType.F32)}, transforms),
        lambda types, transforms: (dict(reversed(types.items())), transforms),
        lambda types, transforms: (types, {}),
    ],
    ids=["type", "order", "transform"],
)
def test_what_a_file_holds_is_in_its_key(change: Callable[..., Any]) -> None:
    plain = store().key(TYPES, {"twice": twice()})
    assert plain == store().key(dict(TYPES), {"twice": twice()})
    assert plain != store().key(*change(TYPES, {"twice": twice()}))


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    wrong: Callable[[str], torch.Tensor] = lambda name: TENSORS[name].double() if name == "b" else TENSORS[name]  # noqa: E731
    with pytest.raises(ArtifactError, match=r"weight 'b' is torch.float64\[7\], expected bf16\[7\]"):
        packing.write_weights(tmp_path / "w", TYPES, {"twice": twice()}, wrong, store())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="w: cannot be written: No space left on device"):
        packing.write_weights(tmp_path / "w", TYPES, {"twice": twice()}, TENSORS.__getitem__, store())
    assert list(tmp_path.iterdir()) == []
