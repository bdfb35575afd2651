"""Tensor types."""

import pytest

from inferir.ir.graph.dims import S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType


def test_text_rank_and_sizes() -> None:
    t = TensorType((T, 2, S), DType.BF16)
    assert str(t) == "bf16[T, 2, S]"
    assert t.rank == 3
    assert t.numel == 2 * S * T
    assert t.concrete({"T": 3, "S": 5}) == (3, 2, 5)
    assert t.nbytes({"T": 3, "S": 5}) == 60
    assert str(TensorType((), DType.F32)) == "f32[]"


def test_equality_and_hash_follow_the_normal_form_of_dimensions() -> None:
    a, b = TensorType((2 * (T + 1),), DType.F32), TensorType((T + T + 2,), DType.F32)
    assert a == b
    assert hash(a) == hash(b)
    assert a != TensorType((2 * T + 2,), DType.BF16)


def test_dimensions_are_checked() -> None:
    with pytest.raises(TypeError, match="not a dimension"):
        TensorType((1.5,), DType.F32)  # type: ignore[arg-type]
