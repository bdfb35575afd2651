"""Tiles: candidates, what they are chosen by, their part in names and keys, and that they leave every bit alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_arguments import in_order
from matmul_regions import KINDS, LIMITS, Linear, bias_and_residual, logits, plain

from inferir.codegen.backend import Context
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import bucket_key, distinct, lower_bucket
from inferir.codegen.tunables import Product, build_races
from inferir.codegen.tvm.backend import BACKEND
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile
from inferir.codegen.tvm.kernels.microkernel import micro_kernel
from inferir.codegen.tvm.regions import lower_region
from inferir.codegen.tvm.tiles import TileTuning
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.errors import TuningError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.graph.interpreter import run_body

CPUS = [t for t in TARGETS.values() if t.kind == "cpu"]


def product(region: Node, bucket: Bucket) -> Product:
    (found,) = TileTuning().products([region], Context(bucket, CPUS[0], LIMITS))
    return found


def array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def test_products() -> None:
    region = plain(DType.F32)[1]
    assert product(region, Bucket(5, 9)) == Product(48, 100, "f32", 1, 5, 8)
    assert str(product(region, Bucket(1, 2))) == "48 to 100 f32, 1 row"
    gated = product(KINDS["gated"](DType.BF16)[1], Bucket(2, 5))
    assert (str(gated), gated.interleave) == ("32 to 168 bf16, 2-4 rows", 2)
    rows = logits(DType.BF16)[1]
    assert product(rows, Bucket(2, 5)) == Product(64, 200, "bf16", 1, 1, 4)
    assert product(rows, Bucket(17, 65)) == product(rows, Bucket(65, 2049))  # at most 8 rows of logits in both


@pytest.mark.parametrize("target", CPUS, ids=lambda t: t.name)
@pytest.mark.parametrize("most", [1, 4, 8, 64, 2048])
@pytest.mark.parametrize(("k", "n"), [(576, 64), (576, 49152), (4096, 14336)])
def test_candidates(target: Target, most: int, k: int, n: int) -> None:
    features = frozenset(target.features)
    wanted = Product(k, n, "bf16", 1, most // 2 + 1, most)
    found = TileTuning().candidates(wanted, target)
    assert found[0] == choose_tile(wanted, features)
    assert len(set(found)) == len(found) <= 20
    for tile in found:
        assert 1 <= tile.rows <= min(most, micro_kernel("panels", "bf16").most_rows(1, features))
        assert tile.panel >= tile.rows
        assert 1 <= tile.blocks <= max(found[0].blocks, -(-n // 64) // 4)
    if n > 64:
        assert len(found) > 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize(
    ("rows", "bucket"), [(3, Bucket(2, 5)), (40, Bucket(17, 65))], ids=lambda x: getattr(x, "name", str(x))
)
def test_every_candidate_has_the_bits_of_the_default(
    runner: Callable, aligned: Callable, host: Target, dtype: DType, rows: int, bucket: Bucket
) -> None:
    torch.manual_seed(0)
    m = Linear(dtype, 64, 520)
    region = m.region(m.b.op("nn.softcap", m.y, cap=5.0))
    wanted = product(region, bucket)
    tiles = TileTuning().candidates(wanted, host)
    assert len(tiles) > 2
    lowered = [lower_region(f"k{i}", region, Context(bucket, host, LIMITS, {wanted: t})) for i, t in enumerate(tiles)]
    tensors = m.tensors(rows)
    (like,) = run_body(region.attrs["body"], tensors)
    step = runner([one.kernels[0] for one in lowered], host, 1)
    results = []
    for i, one in enumerate(lowered):
        results.append(aligned(np.full_like(array(like), 7)))
        arrays = in_order(one.args, [aligned(array(t)) for t in tensors], results[-1:])
        step.step(step.table([(i, arrays)]), n_t=rows)
        np.testing.assert_array_equal(results[-1].view(np.uint8), results[0].view(np.uint8), str(tiles[i]))
    assert not (results[0] == 7).any()


def test_a_tile_is_used_where_it_belongs(host: Target) -> None:
    region = bias_and_residual(DType.BF16)[1]
    wanted = product(region, Bucket(2, 5))
    tiles = {wanted: MatmulTile(2, 4, 2)}
    tuned = lower_region("k", region, Context(Bucket(2, 5), host, LIMITS, tiles))
    assert tuned.tile == {"rows": 2, "panel": 4, "blocks": 2, "tuned": 1}
    other = lower_region("k", region, Context(Bucket(5, 9), host, LIMITS, tiles))
    assert other == lower_region("k", region, Context(Bucket(5, 9), host, LIMITS))
    assert "tuned" not in other.tile


def test_tiles_change_the_key_and_the_kernels_of_their_bucket_only(host: Target) -> None:
    region = plain(DType.F32)[1]
    regions = distinct([region])
    mine, other = Bucket(2, 5), Bucket(5, 9)
    tiles = {product(region, mine): MatmulTile(1, 4, 2)}
    plain_, with_tiles = Context(mine, host, LIMITS), Context(mine, host, LIMITS, tiles)
    plainly, tuned = bucket_key(BACKEND, regions, plain_), bucket_key(BACKEND, regions, with_tiles)
    assert plainly.digest != tuned.digest
    assert "tiles" not in plainly.components
    another = Context(mine, host, LIMITS, {product(region, mine): MatmulTile(2, 4, 2)})
    changed = bucket_key(BACKEND, regions, another)
    assert len({plainly.digest, tuned.digest, changed.digest}) == 3
    elsewhere = Context(other, host, LIMITS)
    assert bucket_key(BACKEND, regions, replace(elsewhere, choices=tiles)) == bucket_key(BACKEND, regions, elsewhere)
    lowered = lower_bucket(BACKEND, regions, with_tiles)
    assert lowered.kernels != lower_bucket(BACKEND, regions, plain_).kernels
    assert lowered.meta.kernels[0].tile == {"rows": 1, "panel": 4, "blocks": 2, "tuned": 1}


def test_libraries_of_a_race_come_from_the_cache(host: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    region = plain(DType.F32)[1]
    bucket = Bucket(2, 4)
    race = TileTuning().race(product(region, bucket), region, Context(bucket, host, LIMITS))
    assert race.choices == TileTuning().candidates(race.product, host)
    assert race.args == (Operand(0), Operand(1), Result(0))
    cache = CompileCache(None)
    first = build_races(BACKEND, [race], host, cache)
    monkeypatch.setattr("inferir.codegen.tvm.backend.build_many", None)
    assert build_races(BACKEND, [race], host, cache) == first
    assert first[0].startswith(b"\x7fELF")


def test_the_generator_version_names_source_and_compiler() -> None:
    digest, _, rest = TileTuning().version.partition(", ")
    assert len(digest) == 16
    assert rest.startswith("apache-tvm ")


def test_a_record_becomes_the_tile_it_was_made_of() -> None:
    tuning = TileTuning()
    assert tuning.record(MatmulTile(1, 2, 3)) == {"rows": 1, "panel": 2, "blocks": 3}
    assert tuning.choice({"rows": 1, "panel": 2, "blocks": 3}) == MatmulTile(1, 2, 3)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"rows": 65, "panel": 2, "blocks": 3}, "rows of a tile is 65"),
        ({"rows": 1, "panel": 2}, "blocks of a tile is missing"),
        ({"rows": 1, "panel": 2, "blocks": 3, "vectors": 2}, "vectors of a tile is 2"),
    ],
)
def test_what_can_be_no_tile_is_refused(record: dict[str, int], reason: str) -> None:
    with pytest.raises(TuningError, match=reason):
        TileTuning().choice(record)
