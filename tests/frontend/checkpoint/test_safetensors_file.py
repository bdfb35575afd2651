"""Headers of safetensors files: every fault is an error that names file and tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inferir.frontend.checkpoint.safetensors_file import MappedFile, read_header
from inferir.ir.errors import WeightError
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.types import TensorType


def write(file: Path, entries: dict[str, Any], data: bytes) -> Path:
    header = json.dumps(entries).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return file


@pytest.mark.parametrize("dtype", DType)
def test_tensors_are_those_of_the_library(dtype: DType, tmp_path: Path) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(torch_dtype(dtype))
    tensors = {"a": torch.ones(1, dtype=torch.uint8), "x": tensor, "none": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "m.safetensors")
    entries = read_header(tmp_path / "m.safetensors")
    mapped = MappedFile(tmp_path / "m.safetensors")
    assert torch.equal(mapped.tensor(entries["x"]), tensor)
    assert mapped.tensor(entries["none"]).shape == (0, 4)
    assert entries["x"].type == TensorType((2, 3), dtype)


def test_data_that_is_not_aligned_is_copied(tmp_path: Path) -> None:
    entries = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
    }
    value = torch.tensor([0.5]).numpy().tobytes()
    for pad in range(4):  # one of these puts `x` at an odd place, whatever the header's length
        file = write(tmp_path / f"m{pad}.safetensors", {**entries, "__metadata__": {"p": "." * pad}}, b"\0" + value)
        assert float(MappedFile(file).tensor(read_header(file)["x"])) == 0.5


def test_an_element_type_that_is_not_known_has_no_type(tmp_path: Path) -> None:
    entries = {"x": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    entry = read_header(write(tmp_path / "m.safetensors", entries, b"\0\0"))["x"]
    assert (entry.type, entry.spelling) == (None, "F8_E4M3")


PLAIN = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {**PLAIN, "shape": "1"},
        {**PLAIN, "shape": [True]},
        {**PLAIN, "shape": [1.0]},
        {**PLAIN, "shape": [-1]},
        {**PLAIN, "data_offsets": [4]},
        {**PLAIN, "data_offsets": [4, 0]},
        {**PLAIN, "data_offsets": [-4, 4]},
        {**PLAIN, "dtype": 1},
        {"shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_a_damaged_entry_is_named(entry: Any, tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"m\.safetensors: the header entry of tensor 'x' is damaged"):
        read_header(write(tmp_path / "m.safetensors", {"x": entry}, b"\0" * 4))


@pytest.mark.parametrize(
    ("entries", "size", "reason"),
    [
        ({"x": {**PLAIN, "data_offsets": [0, 8]}}, 4, "truncated: tensor 'x' ends at byte"),
        ({"x": {**PLAIN, "shape": [2]}}, 4, r"tensor 'x' has 4 bytes, which is not F32\[2\]"),
        ({"x": {**PLAIN, "data_offsets": [4, 8]}}, 8, "tensor 'x' leaves 4 bytes before it unused"),
        ({"x": PLAIN, "y": PLAIN}, 4, "overlaps another"),
        ({"x": PLAIN}, 6, "2 bytes follow its last tensor"),
    ],
)
def test_data_out_of_place_is_named(entries: dict[str, Any], size: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=rf"m\.safetensors: .*{reason}"):
        read_header(write(tmp_path / "m.safetensors", entries, b"\0" * size))


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(PLAIN)
    header = f'{{"x": {entry}, "x": {entry}}}'.encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(WeightError, match="a name stands in it twice"):
        read_header(tmp_path / "m.safetensors")
