"""Op definitions as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder
from inferir.ir.graph.registry import all_ops, define, opdef
from inferir.ir.graph.types import TensorType

GIVEN = {"core.input", "core.weight", "core.scalar"}


def test_every_op_but_the_given_sources_has_a_reference() -> None:
    assert {name for name, op in all_ops().items() if op.evaluate is None} == GIVEN


def test_every_nn_op_has_a_decomposition() -> None:
    assert all(op.decompose is not None for name, op in all_ops().items() if name.startswith("nn."))


def test_unknown_and_duplicate_ops_are_named() -> None:
    with pytest.raises(IRError, match=r"unknown op 'tensor\.nope'"):
        opdef("tensor.nope")
    with pytest.raises(IRError, match=r"unknown dialect 'nope'; known: core, tensor"):
        opdef("nope.exp")
    with pytest.raises(IRError, match=r"tensor\.exp is defined twice"):
        define("tensor.exp", 1, lambda types, attrs: types[0])


def test_a_dialect_of_another_distribution_is_loaded_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "acme_ops.py").write_text(
        "from inferir.ir.graph.registry import Dialect, OpDef\n"
        "from inferir.ir.ops.common import same\n"
        "SIGN = OpDef('acme.sign', 1, same, lambda attrs, x: x.sign(), elementwise=True)\n"
        "DIALECT = Dialect('acme', (SIGN,))\n"
    )
    info = tmp_path / "acme-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[inferir.ops]\nacme = acme_ops:DIALECT\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from inferir.ir.graph.registry import DIALECTS, all_ops, opdef\n"
        "assert opdef('tensor.exp').elementwise and 'acme_ops' not in sys.modules\n"
        "print(opdef('acme.sign').short, 'acme.sign' in all_ops(), DIALECTS.all()[-1].origin)\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "sign True acme 1.5\n"


@pytest.mark.parametrize(
    ("op", "count", "attrs", "message"),
    [
        ("tensor.exp", 2, {}, "2 operands, expected 1"),
        ("tensor.cat", 0, {"dim": 0}, "0 operands"),
        ("tensor.cast", 1, {}, "attribute 'dtype' is missing"),
        ("tensor.cast", 1, {"dtype": "f32"}, "attribute 'dtype' has type str"),
        ("tensor.exp", 1, {"fast": True}, "unknown attribute 'fast'"),
        ("tensor.permute", 1, {"perm": (0, 0)}, "not a permutation"),
    ],
)
def test_misuse_names_the_op(op: str, count: int, attrs: dict[str, object], message: str) -> None:
    b = Builder()
    x = b.input("x", TensorType((T, 4), DType.F32))
    with pytest.raises(IRError, match=message) as caught:
        b.op(op, *([x] * count), **attrs)
    assert str(caught.value).startswith(op)


def test_defaults_are_filled_in() -> None:
    b = Builder()
    x = b.input("x", TensorType((T, 4), DType.F32))
    assert b.op("tensor.slice", x, dim=-1, start=0, stop=2).node.attrs["step"] == 1
