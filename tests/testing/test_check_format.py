"""`check_format`: every format keeps to its bounds, and wrong ones are found out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from inferir.codegen.tvm.formats.read_panels import MICRO_KERNELS
from inferir.ir.errors import IRError
from inferir.ir.formats.panels import Panels
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import FORMATS
from inferir.testing import CheckFailedError, check_format


@pytest.mark.parametrize("name", FORMATS.names())
def test_every_format_keeps_to_its_bounds(name: str) -> None:
    assert FORMATS.get(name).name == name
    report = check_format(name)
    assert report.weights >= 60
    assert report.kernels["cpu"] == ("6 products" if name == "panels" else report.kernels["cpu"])


class Rounds(Panels):
    def unpack(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        return super().unpack(stored, n, interleave).bfloat16().to(stored[0].dtype)


def test_a_format_that_promises_too_much() -> None:
    with pytest.raises(CheckFailedError, match=r"panels unpacks .* for .* in row \d+, column \d+, where it allows"):
        check_format(Rounds())


class Mispacks(Panels):
    """The last block of several is the one before it."""

    def pack(self, w: torch.Tensor, options: Attrs) -> tuple[torch.Tensor, ...]:
        (packed,) = super().pack(w, options)
        if len(packed) > 1:
            packed = packed.clone()
            packed[-1] = packed[-2]
        return (packed,)


def test_a_format_that_mispacks_the_last_block_is_found_with_the_fewest_rows() -> None:
    with pytest.raises(CheckFailedError) as found:
        check_format(Mispacks())
    assert "f32[65, " in str(found.value), "65 rows are the fewest of two blocks"


class Untyped(Panels):
    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        return tuple(TensorType((*t.shape, 1), t.dtype) for t in super().types(w, options))


class Crashes(Panels):
    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        if w.rank != 2:
            raise ValueError("rank")
        return super().types(w, options)


class Picky(Panels):
    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        if w.rank == 2 and w.shape[0] == 63:
            raise IRError("no 63")
        return super().types(w, options)


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (Untyped(), r"says that .* are f32\[.*\], but packs"),
        (Crashes(), r"must refuse f32\[8\] with IRError, but raised ValueError: rank"),
        (Picky(), r"does not hold f32\[63, 32\]"),
    ],
)
def test_types_and_refusals(format: Panels, message: str) -> None:
    with pytest.raises(CheckFailedError, match=message):
        check_format(format)


class Grouped(Panels):
    """Holds float32 in groups of 64."""

    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        if w.dtype is not DType.F32 or w.shape[-1] % 64:
            raise IRError("no groups of 64 float32")
        return super().types(w, options)


def test_a_format_may_hold_some_types_and_widths_only() -> None:
    report = check_format(Grouped(), dtypes=[DType.F32], widths=[64, 192], examples=20)
    assert report.weights > 10
    with pytest.raises(CheckFailedError, match=r"panels does not hold bf16\[1, 64\]"):
        check_format(Grouped(), widths=[64, 192], examples=1)
    with pytest.raises(CheckFailedError, match=r"panels does not hold f32\[1, 32\]"):
        check_format(Grouped(), dtypes=[DType.F32], examples=1)


def test_a_kernel_that_multiplies_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MICRO_KERNELS["f32"]
    wrong = replace(right, dot=lambda sums, x, w: right.dot(sums, x, x))
    monkeypatch.setitem(MICRO_KERNELS, "f32", wrong)
    with pytest.raises(CheckFailedError, match=r"panels: the kernel of backend cpu is off by .* instead of"):
        check_format("panels", dtypes=[DType.F32], backends=["cpu"], examples=5)
