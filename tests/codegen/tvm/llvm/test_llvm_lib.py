"""Helper functions against float64 references, and the text of the library."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.llvm import llvm_lib
from inferir.codegen.tvm.llvm.llvm_body import HELPERS
from inferir.codegen.tvm.source import Writer, ramp
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError

_DTYPE = {"f": "float32", "F": "float32", "i": "int32", "h": "uint16"}
_LANES = (1, 2, 4, 8, 16)


def _module(lanes: int) -> str:
    """One exported function per helper that applies it to `n` vectors."""
    w = Writer()
    w.line("@I.ir_module")
    with w.block("class Mod:"):
        for name, known in HELPERS.items():
            params = ", ".join(f'p{i}: T.handle("{_DTYPE[k]}")' for i, k in enumerate(known.args))
            w.line("@T.prim_func")
            with w.block(f'def {name}({params}, o: T.handle("{_DTYPE[known.result]}"), n: T.int32) -> T.int32:'):
                w.line(f'T.func_attr({{"global_symbol": "inferir_run_{name}", "calling_conv": 2}})')
                for i, k in enumerate(known.args):
                    w.line(f'P{i} = T.decl_buffer((1,), "{_DTYPE[k]}", data=p{i})')
                w.line(f'O = T.decl_buffer((1,), "{_DTYPE[known.result]}", data=o)')
                imported = 'with T.attr(T.int32(0), "pragma_import_llvm", LLVM_LIBRARY):'
                with w.block(imported), w.block("for i in range(n):"):
                    at = ramp(f"i * {lanes}", lanes)
                    args = [f"P{k}[{at}]" for k in range(len(known.args))]
                    w.line(f"O[{'i' if known.result == 'F' else at}] = {llvm_lib.call(name, lanes, *args)}")
                w.line("return T.int32(0)")
    return w.text()


@pytest.fixture
def library(load: Callable[[str, Target], ctypes.CDLL], aligned: Callable[[Any], np.ndarray]) -> Callable[..., Any]:
    """Returns `open(lanes, target) -> run(name, *arrays)`."""

    def open_library(lanes: int, target: Target) -> Callable[..., np.ndarray]:
        module = load(_module(lanes), target)

        def run(name: str, *arrays: np.ndarray) -> np.ndarray:
            known = HELPERS[name]
            inputs = [aligned(np.asarray(a, _DTYPE[k])) for a, k in zip(arrays, known.args, strict=True)]
            vectors = inputs[0].size // lanes
            out = aligned(np.zeros(vectors if known.result == "F" else vectors * lanes, _DTYPE[known.result]))
            pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*inputs, out)]
            assert getattr(module, f"inferir_run_{name}")(*pointers, ctypes.c_int32(vectors)) == 0
            return out

        return run

    return open_library


def _wide(name: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    n = 1 << 13
    if name in ("inf_sin", "inf_cos"):
        parts = [rng.uniform(-10, 10, n), rng.uniform(-1e5, 1e5, n), rng.uniform(-1e-3, 1e-3, n)]
        return np.concatenate(parts).astype("float32")
    scales = 10.0 ** rng.uniform(-38, 37, n)
    near_one = 1 + rng.uniform(-1e-3, 1e-3, n)
    parts = [rng.uniform(-100, 100, n), rng.uniform(-5, 5, n), rng.uniform(-1, 1, n) * scales, near_one]
    x = np.concatenate(parts).astype("float32")
    if name == "inf_log":
        return np.abs(x)
    return np.maximum(x, np.float32(-0.999)) if name == "inf_log1p" else x


def _torch64(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: fn(torch.from_numpy(x.astype("float64"))).numpy()


_UNARY = {
    "inf_exp": (np.exp, 2e-7),
    "inf_log": (np.log, 2e-7),
    "inf_log1p": (np.log1p, 4e-7),
    "inf_softplus": (_torch64(torch.nn.functional.softplus), 4e-7),
    "inf_sigmoid": (_torch64(torch.sigmoid), 3e-7),
    "inf_tanh": (np.tanh, 3e-7),
    "inf_erf": (_torch64(torch.erf), 3e-7),
    "inf_sqrt": (lambda x: np.sqrt(np.where(x < 0, np.nan, x)), 1e-7),
    "inf_abs": (np.abs, 0.0),
}


@pytest.mark.parametrize("lanes", [1, 16])
def test_unary_functions_match_float64(target: Target, library: Callable[..., Any], lanes: int) -> None:
    run = library(lanes, target)
    tiny, largest = float(np.finfo("float32").tiny), float(np.finfo("float32").max)
    for name, (reference, bound) in _UNARY.items():
        x = _wide(name)
        got = run(name, x).astype("float64")
        with np.errstate(all="ignore"):
            want = reference(x.astype("float64"))
            want[np.abs(want) > largest] *= np.inf
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            error = np.where(same, 0.0, np.abs(got - want) / np.maximum(np.abs(want), tiny))
        if name == "inf_sigmoid":  # exp overflows where the result is denormal: 0 instead
            error = np.where(np.abs(want) < tiny, 0.0, error)
        assert error.max() <= bound, (name, x[error.argmax()], error.max())


def test_sine_and_cosine(target: Target, library: Callable[..., Any]) -> None:
    run = library(16, target)
    for name, reference in (("inf_sin", np.sin), ("inf_cos", np.cos)):
        x = _wide(name)
        assert np.abs(run(name, x) - reference(x.astype("float64"))).max() < 2e-7


def test_power_of_two_for_softmax(target: Target, library: Callable[..., Any]) -> None:
    run = library(16, target)
    x = -np.abs(_wide("inf_exp2_neg"))
    x = np.concatenate([x, np.arange(-130, 1), [-np.inf, np.nan, -125.99, -126.0, 0.0], np.zeros(8)]).astype("float32")
    x = np.resize(x, x.size // 16 * 16)
    want = np.where(x >= -126, np.exp2(x.astype("float64")), np.where(np.isnan(x), np.nan, 0))
    np.testing.assert_allclose(run("inf_exp2_neg", x), want, rtol=2e-7, atol=0)


def test_power_of_two_for_bf16_weights(target: Target, library: Callable[..., Any]) -> None:
    run = library(16, target)
    x = np.concatenate(
        [-np.abs(_wide("inf_exp2_neg")), np.arange(-125, 1), [-np.inf, np.nan, -300.0, 0.0], np.zeros(8)]
    )
    x = np.resize(x, x.size // 16 * 16).astype("float32")
    want = np.where(np.isnan(x), np.nan, np.exp2(x.astype("float64")))
    got = run("inf_exp2_weight", x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2.0**-126)  # denormal results may be cut off
    assert (got[x < -200] == 0).all()


def test_special_values(target: Target, library: Callable[..., Any]) -> None:
    run = library(16, target)
    inf, nan = np.inf, np.nan
    x = np.resize(np.array([0, -0.0, inf, -inf, nan, 1e-45, -1e-45, -1, 88.8, -103.9, -200, 3e38], "float32"), 16)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("inf_exp", x), np.exp(x.astype("float64")).astype("float32"))
        for name, reference in (("inf_log", np.log), ("inf_log1p", np.log1p), ("inf_tanh", np.tanh)):
            np.testing.assert_allclose(run(name, x), reference(x.astype("float64")).astype("float32"), rtol=3e-7)
    y = np.resize(np.array([1, nan], "float32"), 16)
    np.testing.assert_array_equal(run("inf_max", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(run("inf_min", x, y), np.minimum(x, y))


def test_exp_has_the_same_bits_in_every_lane_count(target: Target, library: Callable[..., Any]) -> None:
    x = _wide("inf_exp")
    with np.errstate(invalid="ignore"):
        runs = [library(lanes, target)("inf_exp", x).view("uint32") for lanes in _LANES]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


def test_power(target: Target, library: Callable[..., Any]) -> None:
    run = library(8, target)
    rng = np.random.default_rng(2)
    x = np.exp(rng.uniform(-20, 20, 1 << 12)).astype("float32")
    y = rng.uniform(-8, 8, x.size).astype("float32")
    x[:1024] *= -1
    y[:1024] = np.rint(y[:1024])
    special = [(0, 0), (0, 2), (0, -1), (-2, 0.5), (np.inf, 2), (np.inf, -2)]
    special += [(1, np.nan), (np.nan, 0), (-3, 3), (2, 130), (2, -149)]
    x[-11:], y[-11:] = np.array(special, "float32").T
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64")).astype("float32")
    np.testing.assert_allclose(run("inf_pow", x, y), want, rtol=2e-7, atol=2e-45)


@pytest.mark.parametrize("lanes", _LANES)
def test_bf16_conversions_and_dot(target: Target, library: Callable[..., Any], lanes: int) -> None:
    run = library(lanes, target)
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(1 << 10) * 10.0 ** rng.uniform(-30, 30, 1 << 10)).astype("float32")
    x[:4] = [0.0, np.inf, -np.inf, 1.00390625]  # the last is a tie, which goes to even
    stored = torch.from_numpy(x).bfloat16()
    bits = stored.view(torch.int16).numpy().view("uint16")
    np.testing.assert_array_equal(run("inf_f32_to_bf16", x), bits)
    np.testing.assert_array_equal(run("inf_bf16_to_f32", bits), stored.float().numpy())
    np.testing.assert_array_equal(run("inf_round_bf16", x), stored.float().numpy())
    assert np.isnan(run("inf_round_bf16", np.full(16, np.nan))).all()
    joined = run("inf_join_bf16", x, x[::-1].copy())
    rows = np.stack([bits.reshape(-1, lanes), bits[::-1].reshape(-1, lanes)], 1)
    np.testing.assert_array_equal(joined.view("uint16"), rows.ravel())

    acc, a, b = (rng.standard_normal(k * 256).astype("float32") for k in (1, 2, 2))
    a, b = (torch.from_numpy(v).bfloat16() for v in (a, b))
    ints = [v.view(torch.int16).numpy().view("int32") for v in (a, b)]
    want = acc + (a.double() * b.double()).numpy().reshape(-1, 2).sum(1)
    np.testing.assert_allclose(run("inf_dot_bf16", acc, *ints), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lanes", _LANES)
def test_horizontal_reductions(host: Target, library: Callable[..., Any], lanes: int) -> None:
    run = library(lanes, host)
    x = np.random.default_rng(4).standard_normal(256).astype("float32")
    np.testing.assert_array_equal(run("inf_hmax", x), x.reshape(-1, lanes).max(1))
    half = x.reshape(-1, lanes)
    while half.shape[1] > 1:
        half = half[:, : half.shape[1] // 2] + half[:, half.shape[1] // 2 :]
    np.testing.assert_array_equal(run("inf_hsum", x), half[:, 0])


def test_library_holds_what_is_asked_for_and_its_needs() -> None:
    text = llvm_lib.library(["inf_tanh_8", "inf_ptr"], frozenset())
    assert text.count("define ") == 3
    assert all(f"@{name}(" in text for name in ("inf_tanh_8", "inf_exp_8", "inf_ptr"))
    assert text == llvm_lib.library(["inf_ptr", "inf_tanh_8", "inf_ptr"], frozenset())
    assert "dpbf16ps" in llvm_lib.library(["inf_dot_bf16_16"], frozenset(Target.named("x86-64-v4+bf16+vnni").features))
    assert "dpbf16ps" not in llvm_lib.library(["inf_dot_bf16_16"], frozenset(Target.named("x86-64-v4").features))


@pytest.mark.parametrize("name", ["inf_exp", "inf_exp_3", "inf_nothing_4", "exp_4"])
def test_unknown_helper_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(CodegenError, match=name):
        llvm_lib.library([name], frozenset())
