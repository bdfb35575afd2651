"""Matmul kernels against float64 products, for every target, and their independence of tiles and chunks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.matmul import MatmulTile, choose_tile, matmul_kernel, store_epilogue
from inferir.ir.errors import CodegenError
from inferir.ir.target import Target

_TORCH = {"bf16": torch.bfloat16, "f32": torch.float32}
_BOUND = {"bf16": 2e-6, "f32": 2e-6}  # of the largest result; products of bf16 are exact in float32


def _pack(w: torch.Tensor, interleave: int) -> torch.Tensor:
    """[N, K] to [ceil(N/64), K/kp, 64, kp], zero padded."""
    n, k = w.shape
    kp = 2 if w.dtype == torch.bfloat16 else 1
    part = n // interleave
    per_block = 64 // interleave
    padded = torch.zeros(interleave, -(-part // per_block) * per_block, k, dtype=w.dtype)
    padded[:, :part] = w.view(interleave, part, k)
    mixed = padded.view(interleave, -1, 16, k).permute(1, 0, 2, 3).reshape(-1, 64, k)
    return mixed.view(-1, 64, k // kp, kp).permute(0, 2, 1, 3).contiguous()


def _numpy(t: torch.Tensor) -> np.ndarray:
    return t.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.numpy()


@pytest.fixture
def multiply(runner: Callable[..., Any], aligned: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """Builds a matmul kernel with a plain epilogue and returns a function of (x, w, residual) that runs it."""

    def make(
        target: Target,
        k: int,
        n: int,
        dtype: str,
        *,
        interleave: int = 1,
        out: str = "f32",
        residual: str | None = None,
        tile: MatmulTile | None = None,
        max_rows: int = 16,
        stride: int | None = None,
        workers: int = 0,
    ) -> Callable[..., np.ndarray]:
        features = frozenset(target.features)
        epilogue, extra = store_epilogue(out, n // interleave, residual)
        kernel = matmul_kernel(
            "mm",
            k=k,
            n=n,
            dtype=dtype,
            tile=tile or choose_tile(k=k, n=n, dtype=dtype, max_rows=max_rows, features=features),
            features=features,
            epilogue=epilogue,
            extra=extra,
            x_row_stride=stride,
            interleave=interleave,
        )
        run = runner([kernel], target, workers)

        def apply(x: torch.Tensor, w: torch.Tensor, res: torch.Tensor | None = None) -> np.ndarray:
            arrays = [aligned(_numpy(x)), aligned(_numpy(_pack(w, interleave)))]
            result = aligned(np.full((len(x), n // interleave), 7, "float32" if out == "f32" else "uint16"))
            arrays += [result] if res is None else [result, aligned(_numpy(res))]
            run.step(run.table([(0, arrays)]), n_t=len(x))
            if out == "f32":
                return result
            return torch.from_numpy(result.view("int16")).view(torch.bfloat16).float().numpy()

        return apply

    return make


def _inputs(m: int, n: int, k: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m * 7 + n * 3 + k)
    return tuple(torch.randn(rows, k, generator=generator).to(_TORCH[dtype]) for rows in (m, n))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_product_for_every_row_count(target: Target, multiply: Callable[..., Any], dtype: str) -> None:
    run = multiply(target, 34, 87, dtype, max_rows=16)
    x, w = _inputs(16, 87, 34, dtype)
    want = (x.double() @ w.double().T).numpy()
    for m in range(1, 17):
        got = run(x[:m].contiguous(), w)
        assert np.abs(got - want[:m]).max() <= _BOUND[dtype] * np.abs(want).max(), m


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rows_are_bit_identical_for_every_tile_and_count(
    target: Target, multiply: Callable[..., Any], dtype: str
) -> None:
    k, n = 50, 130
    x, w = _inputs(40, n, k, dtype)
    whole = multiply(target, k, n, dtype, max_rows=40)(x, w)
    for tile in (MatmulTile(1, 1, 1), MatmulTile(3, 7, 2), MatmulTile(2, 40, 3)):
        run = multiply(target, k, n, dtype, tile=tile)
        np.testing.assert_array_equal(run(x, w), whole)
        np.testing.assert_array_equal(run(x[11:24].contiguous(), w), whole[11:24])
    single = multiply(target, k, n, dtype, max_rows=12)
    for m in (1, 2, 5, 8, 9, 12):
        np.testing.assert_array_equal(single(x[:m].contiguous(), w), whole[:m])


@pytest.mark.parametrize("half", [5, 32, 43, 80])
def test_interleaved_halves(host: Target, multiply: Callable[..., Any], half: int) -> None:
    x, w = _inputs(5, 2 * half, 16, "bf16")
    got = multiply(host, 16, 2 * half, "bf16", interleave=2, max_rows=5)(x, w)
    both = (x.double() @ w.double().T).numpy()
    want = both[:, :half] * both[:, half:]
    assert np.abs(got - want).max() <= 4e-6 * np.abs(want).max()


@pytest.mark.parametrize(("out", "residual"), [("bf16", "bf16"), ("f32", "f32"), ("bf16", "f32")])
def test_residual_and_output_types(target: Target, multiply: Callable[..., Any], out: str, residual: str) -> None:
    x, w = _inputs(7, 64, 32, "bf16")
    res = torch.randn(7, 64).to(_TORCH[residual])
    got = multiply(target, 32, 64, "bf16", out=out, residual=residual, max_rows=7)(x, w, res)
    want = (x.double() @ w.double().T + res.double()).numpy()
    np.testing.assert_allclose(got, want, rtol=2**-8 if out == "bf16" else 1e-5, atol=1e-5)


def test_row_stride_of_the_input(host: Target, multiply: Callable[..., Any]) -> None:
    x, w = _inputs(9, 64, 20, "bf16")
    wide = torch.full((9, 32), 1e30, dtype=torch.bfloat16)
    wide[:, :20] = x
    got = multiply(host, 20, 64, "bf16", stride=32, max_rows=9)(wide, w)
    np.testing.assert_array_equal(got, multiply(host, 20, 64, "bf16", max_rows=9)(x, w))


def test_threads_do_not_change_the_result(host: Target, multiply: Callable[..., Any]) -> None:
    x, w = _inputs(150, 320, 64, "bf16")
    alone = multiply(host, 64, 320, "bf16", max_rows=256)(x, w)
    shared = multiply(host, 64, 320, "bf16", max_rows=256, workers=2)
    for _ in range(20):
        np.testing.assert_array_equal(shared(x, w), alone)


def test_no_rows_is_no_work(host: Target, multiply: Callable[..., Any]) -> None:
    x, w = _inputs(0, 64, 16, "bf16")
    assert multiply(host, 16, 64, "bf16")(x, w).shape == (0, 64)


def test_sizes_it_cannot_take_name_the_kernel(host: Target) -> None:
    epilogue, extra = store_epilogue("f32", 64)
    options = {"tile": MatmulTile(1, 1, 1), "features": frozenset(host.features), "epilogue": epilogue, "extra": extra}
    with pytest.raises(CodegenError, match="layer0: K 15"):
        matmul_kernel("layer0", k=15, n=64, dtype="bf16", **options)  # type: ignore[arg-type]
    with pytest.raises(CodegenError, match="layer0: 65 outputs"):
        matmul_kernel("layer0", k=16, n=65, dtype="bf16", interleave=2, **options)  # type: ignore[arg-type]


def test_chunk_sizes() -> None:
    features = frozenset(Target.named("x86-64-v4+bf16+vnni").features)
    small = choose_tile(k=576, n=49152, dtype="bf16", max_rows=8, features=features)
    assert (small.rows, small.panel) == (8, 8)
    large = choose_tile(k=576, n=1536, dtype="bf16", max_rows=1024, features=features)
    assert large.rows == 6
    assert 24 <= large.panel <= 128
    narrow = choose_tile(k=1536, n=576, dtype="bf16", max_rows=64, features=features)
    assert narrow.panel * 2 <= 64  # nine blocks alone would share badly
