"""Matmul kernels against float64 products, for every target, and their independence of tiles and tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from store_epilogue import store_epilogue

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile, matmul_kernel
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError

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
def multiply_all(runner: Callable[..., Any], aligned: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """Builds one module with a matmul kernel per tile, and returns functions of (x, w, residual) that run them."""

    def make(
        target: Target,
        k: int,
        n: int,
        dtype: str,
        tiles: Sequence[MatmulTile],
        *,
        interleave: int = 1,
        out: str = "f32",
        residual: str | None = None,
        workers: int = 0,
    ) -> list[Callable[..., np.ndarray]]:
        epilogue, extra = store_epilogue(out, n // interleave, residual)
        kernels = [
            matmul_kernel(
                f"matmul{i}",
                Product(k, n, dtype, interleave, 1, 1),
                tile=tile,
                features=frozenset(target.features),
                epilogue=epilogue,
                extra=extra,
            )
            for i, tile in enumerate(tiles)
        ]
        run = runner(kernels, target, workers)

        def apply(kernel: int, x: torch.Tensor, w: torch.Tensor, res: torch.Tensor | None = None) -> np.ndarray:
            arrays = [aligned(_numpy(x)), aligned(_numpy(_pack(w, interleave)))]
            result = aligned(np.full((len(x), n // interleave), 7, "float32" if out == "f32" else "uint16"))
            arrays += [result] if res is None else [result, aligned(_numpy(res))]
            run.step(run.table([(kernel, arrays)]), n_t=len(x))
            if out == "f32":
                return result
            return torch.from_numpy(result.view("int16")).view(torch.bfloat16).float().numpy()

        return [partial(apply, i) for i in range(len(tiles))]

    return make


@pytest.fixture
def multiply(multiply_all: Callable[..., Any]) -> Callable[..., Any]:
    """Builds one matmul kernel with the tile chosen for `max_rows`."""

    def make(target: Target, k: int, n: int, dtype: str, *, max_rows: int = 16, **options: Any) -> Any:
        tile = choose_tile(Product(k, n, dtype, 1, 1, max_rows), frozenset(target.features))
        return multiply_all(target, k, n, dtype, [tile], **options)[0]

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
    target: Target, multiply_all: Callable[..., Any], dtype: str
) -> None:
    k, n = 50, 130
    x, w = _inputs(40, n, k, dtype)
    features = frozenset(target.features)
    chosen = [choose_tile(Product(k, n, dtype, 1, 1, m), features) for m in (40, 12, 8)]
    tiles = [*chosen, MatmulTile(1, 1, 1), MatmulTile(3, 7, 2), MatmulTile(2, 40, 3)]
    kernels = multiply_all(target, k, n, dtype, tiles)
    whole = kernels[0](x, w)
    for run, tile in zip(kernels, tiles, strict=True):
        for first, last in ((0, 1), (2, 4), (5, 12), (11, 24), (0, 40)):
            np.testing.assert_array_equal(run(x[first:last].contiguous(), w), whole[first:last], str(tile))


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
        matmul_kernel("layer0", Product(15, 64, "bf16", 1, 1, 1), **options)  # type: ignore[arg-type]
    with pytest.raises(CodegenError, match="layer0: 65 outputs"):
        matmul_kernel("layer0", Product(16, 65, "bf16", 2, 1, 1), **options)  # type: ignore[arg-type]


def test_task_sizes() -> None:
    features = frozenset(Target.named("x86-64-v4+bf16+vnni").features)
    small = choose_tile(Product(576, 49152, "bf16", 1, 1, 8), features)
    assert (small.rows, small.panel) == (6, 8)  # two tiles meet a block while it lies in the cache
    one = choose_tile(Product(576, 49152, "bf16", 1, 1, 1), features)
    assert (one.rows, one.panel) == (1, 1)
    large = choose_tile(Product(576, 1536, "bf16", 1, 1, 1024), features)
    assert large.rows == 6
    assert 24 <= large.panel <= 128
    narrow = choose_tile(Product(1536, 576, "bf16", 1, 1, 64), features)
    assert narrow.panel * 2 <= 64  # nine blocks alone would share badly
