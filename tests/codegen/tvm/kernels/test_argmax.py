"""The arg-max of rows: that of the full product, whatever the bounds leave out, and few blocks read for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.kernels.argmax_parts import ArgmaxShape, argmax_shape
from inferir.codegen.tvm.kernels.argmax_region import argmax_kernels
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.formats.int8_rows import FORMAT as INT8_ROWS
from inferir.ir.formats.panels import FORMAT as PANELS
from inferir.ir.graph.attrs import Attrs

_TORCH = {"bf16": torch.bfloat16, "f32": torch.float32}


def _numpy(t: torch.Tensor) -> np.ndarray:
    return t.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.numpy()


class Chooser:
    """Weights, and the kernels of a bucket for them."""

    def __init__(self, w: torch.Tensor, valid: int, rows: int, target: Target, runner: Any, aligned: Any) -> None:
        dtype = "bf16" if w.dtype == torch.bfloat16 else "f32"
        self.shape = argmax_shape(w.shape[1], w.shape[0], valid, dtype, rows, frozenset(target.features))
        self._aligned = aligned
        stored = (*PANELS.pack(w, Attrs(PANELS.defaults)), *INT8_ROWS.pack(w, Attrs({"valid": valid})))
        self._weights = [aligned(_numpy(t)) for t in stored]
        self._space = aligned(np.full(self.shape.layout()["end"], 0x7FC12345, np.int32))  # undefined: NaN as a float
        self._run = runner(argmax_kernels("argmax", self.shape, frozenset(target.features)), target, 1)

    def tokens(self, x: torch.Tensor) -> list[int]:
        rows = self._aligned(_numpy(x))
        out = self._aligned(np.full(len(x), -7, np.int32))
        arrays = [rows, rows, *self._weights, out, self._space, self._space, self._space]
        self._run.step(self._run.table([(i, arrays) for i in range(5)]), n_g=len(x))
        return out.tolist()

    def upper(self, rows: int) -> np.ndarray:
        """The upper bounds of the last step [rows, blocks]; -inf for the blocks that made the floor."""
        s = self.shape
        found = self._space.view(np.float32)[s.layout()["upper"] :][: s.rows * s.blocks]
        return found.reshape(s.rows, s.blocks)[:rows]

    def rescored(self, rows: int) -> int:
        """Blocks that the last step rescored after it had a floor, all rows together."""
        floor = self._space.view(np.float32)[self.shape.layout()["floor"] :][:rows, None]
        return int(((self.upper(rows) >= floor) | (floor == -np.inf)).sum())


@pytest.fixture
def chooser(runner: Callable[..., Any], aligned: Callable[..., Any]) -> Callable[..., Chooser]:
    def make(w: torch.Tensor, rows: int, target: Target, valid: int | None = None) -> Chooser:
        return Chooser(w, len(w) if valid is None else valid, rows, target, runner, aligned)

    return make


def _first_maximum(x: torch.Tensor, w: torch.Tensor, valid: int | None = None) -> list[int]:
    logits = (x.double() @ w.double().T)[:, :valid]
    return logits.argmax(1).tolist()


def _like_a_model(rows: int, n: int, k: int, dtype: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden rows with a few large channels, and weights with a common part and columns of different size."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(n, k, generator=g) * torch.exp(torch.randn(k, generator=g)) * 0.1 + torch.randn(k, generator=g)
    x = torch.randn(rows, k, generator=g)
    x[:, 3] *= 20
    x[:, k // 2] -= 15
    x += 2 * w[torch.randint(n, (rows,), generator=g)]
    return x.to(_TORCH[dtype]), w.to(_TORCH[dtype])


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("bucket", [1, 4, 16, 40])
def test_tokens_are_those_of_the_product(target: Target, chooser: Callable, dtype: str, bucket: int) -> None:
    x, w = _like_a_model(bucket, 3000, 96, dtype)
    choose = chooser(w, bucket, target)
    for rows in sorted({1, bucket // 2 + 1, bucket}):
        assert choose.tokens(x[:rows].contiguous()) == _first_maximum(x[:rows], w), rows
        assert choose.rescored(rows) < rows * choose.shape.blocks / 2


@pytest.mark.parametrize("bucket", [1, 4, 40])
def test_upper_bounds_are_above_every_output_and_not_far(host: Target, chooser: Callable, bucket: int) -> None:
    x, w = _like_a_model(bucket, 1280, 96, "bf16", seed=3)
    choose = chooser(w, bucket, host)
    choose.tokens(x)
    mean = INT8_ROWS.pack(w, Attrs({"valid": len(w)}))[2][1]
    outputs = x.double() @ (w.double() - mean.double()).T
    largest = outputs.view(bucket, -1, 64).amax(2).numpy()
    upper = choose.upper(bucket)
    kept = upper > -np.inf
    assert kept.sum() >= kept.size - 4 * bucket
    assert (upper >= largest)[kept].all()
    assert (upper - largest)[kept].max() < float(outputs.std()) / 2


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_close_seconds_and_ties_are_decided_by_the_product(host: Target, chooser: Callable, scale: float) -> None:
    """Outputs that differ in the last bit of one weight, and equal ones, of which the first counts."""
    x, w = _like_a_model(8, 1000, 64, "bf16", seed=1)
    x = (x.float() * scale).bfloat16()
    best = _first_maximum(x, w)
    for token in best:
        others = torch.randperm(1000, generator=torch.Generator().manual_seed(token))[:5]
        w[others] = w[token].clone()
        w[others[:2], 7] = torch.nextafter(w[others[:2], 7].float(), torch.tensor(9e9)).bfloat16()
    assert chooser(w, 8, host).tokens(x) == _first_maximum(x, w)


def test_only_valid_outputs_are_chosen(host: Target, chooser: Callable) -> None:
    x, w = _like_a_model(5, 500, 64, "bf16")
    w[470:] *= 50
    assert chooser(w, 5, host, valid=470).tokens(x) == _first_maximum(x, w, 470)


def test_rows_and_weights_that_are_not_numbers(host: Target, chooser: Callable) -> None:
    """As `sample.draw` has it: NaN is never chosen, and without anything above -inf the token is -1."""
    x, w = _like_a_model(6, 300, 64, "f32")
    w[17, 5] = float("nan")
    w[40, 5] = float("inf")
    x[1] = 0
    x[2, 9] = float("nan")
    x[3] = 1e-30 * x[0]
    x[4, 5] = -x[4, 5].abs()
    logits = (x @ w.T).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    want = logits.argmax(1)
    want[2] = -1
    assert chooser(w, 6, host).tokens(x) == want.tolist()
    nothing = torch.full_like(w, float("nan"))
    assert chooser(nothing, 6, host).tokens(x) == [-1] * 6


def test_a_row_does_not_depend_on_others(host: Target, chooser: Callable) -> None:
    x, w = _like_a_model(40, 2000, 64, "bf16", seed=2)
    together = chooser(w, 40, host).tokens(x)
    alone = chooser(w, 1, host)
    assert [alone.tokens(x[i : i + 1].contiguous())[0] for i in range(40)] == together


def test_no_rows_make_no_tasks(host: Target, chooser: Callable) -> None:
    _, w = _like_a_model(1, 200, 64, "bf16")
    choose = chooser(w, 4, host)
    before = choose._space.copy()
    assert choose.tokens(torch.zeros(0, 64, dtype=torch.bfloat16)) == []
    assert (choose._space == before).all()


def test_sizes_without_a_kernel_are_refused() -> None:
    with pytest.raises(CodegenError, match="a multiple of 16 elements, not 40"):
        argmax_shape(40, 100, 100, "bf16", 4, frozenset())
    assert ArgmaxShape(64, 100, 100, "bf16", 4, 4).blocks == 2
