"""The quick reader of module text gives what TVM's own parser gives."""

import pytest
import tvm
import tvm.script
from store_epilogue import store_epilogue
from tvm.script import ir, tirx

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.build.parse_module import _Reader, _UnsupportedError, parse_module
from inferir.codegen.tvm.driver.step_driver import bucket_module_source
from inferir.codegen.tvm.kernels.attention import attention_kernels
from inferir.codegen.tvm.kernels.matmul import MatmulTile, matmul_kernel
from inferir.codegen.tvm.llvm.llvm_lib import library
from inferir.codegen.tvm.source import helper_names
from inferir.ir.contract.kv_reads import SlidingWindow
from inferir.ir.contract.target import Target

_FEATURES = frozenset(Target.named("x86-64-v4+bf16+vnni").features)


def _bucket() -> str:
    epilogue, extra = store_epilogue("bf16", 40, "f32")
    matmul = matmul_kernel(
        "up", Product(6, 80, "bf16", 2, 1, 1), tile=MatmulTile(2, 5, 1), features=_FEATURES, epilogue=epilogue,
        extra=extra,
    )  # fmt: skip
    attention = attention_kernels(
        "attention", heads=6, kv_heads=2, head_dim=16, v_dim=20, block_size=32, reads=SlidingWindow(40),
        softcap=5.0, scale=0.25,
        dtype="bf16", q_row_stride=96, out_row_stride=120, tile_tokens=2, max_blocks_per_seq=8, features=_FEATURES,
    )  # fmt: skip
    return bucket_module_source([matmul, *attention])


def _module(body: str) -> str:
    lines = "\n".join("        " + line for line in body.splitlines())
    head = '    @T.prim_func(private=True)\n    def f(x: T.handle("int32"), n: T.int32) -> T.int32:\n'
    return f"@I.ir_module\nclass Mod:\n{head}{lines}\n        return T.int32(0)\n"


def test_a_bucket_reads_the_same() -> None:
    source = _bucket()
    names = {"I": ir, "T": tirx, "LLVM_LIBRARY": library(helper_names(source), _FEATURES)}
    tvm.ir.assert_structural_equal(_Reader(source, names).module(), tvm.script.from_source(source, names))


_X = 'X = T.decl_buffer((1,), "int32", data=x)'
_BODIES = {
    "loop": f"{_X}\nfor i in T.serial(2, n):\n    X[i] = X[i] * 2 - n",
    "vectors": f"{_X}\nX[T.ramp(n, 1, 4)] = T.broadcast(n, 4) + X[T.ramp(0, 1, 4)]",
    "branches": f"{_X}\nif n > 3:\n    X[n] = 1\nelif 2 != n:\n    X[1] = -n\nelse:\n    X[0] = 2",
    "shadowing": f"{_X}\na: T.let = n + 1\nfor i in range(n):\n    a: T.let[T.int32] = i\n    X[a] = 7\nX[a] = 8",
    "logic": f"{_X}\nif n > 3 and X[0] < 2 and X[1] == 1 or n == 7:\n    X[0] = 1",
    "while": f"{_X}\nwhile X[0] < n:\n    X[0] = X[0] + 1",
}


@pytest.mark.parametrize("body", _BODIES.values(), ids=_BODIES.keys())
def test_statements_read_the_same(body: str) -> None:
    names = {"I": ir, "T": tirx}
    source = _module(body)
    tvm.ir.assert_structural_equal(_Reader(source, names).module(), tvm.script.from_source(source, names))


def test_what_it_does_not_know_goes_to_the_other_parser() -> None:
    source = _module('X = T.decl_buffer((1,), "int32", data=x)\nX[0] = 3 if n > 2 else 4')
    with pytest.raises(_UnsupportedError):
        _Reader(source, {"I": ir, "T": tirx}).module()
    tvm.ir.assert_structural_equal(parse_module(source, {}), tvm.script.from_source(source, {"I": ir, "T": tirx}))


def test_errors_are_those_of_the_other_parser() -> None:
    with pytest.raises(tvm.error.DiagnosticError, match="Undefined variable: nowhere"):
        parse_module(_module("T.evaluate(nowhere + n)"), {})
