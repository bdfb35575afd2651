"""The host of a race: kernels do their work on every copy of the weights, for the row counts of the bucket."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_regions import LIMITS, plain

from inferir.codegen.backend import Context
from inferir.codegen.backends import backend_for
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.tunables import Product, build_races, tuning_of
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import Operand
from inferir.ir.contract.target import Target
from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.runtime import memory
from inferir.tune.kernel_host import KernelHost, Weights, row_counts, weight_bytes


@pytest.mark.parametrize(
    ("lo", "most", "counts"),
    [(1, 1, [1]), (2, 4, [2, 4]), (1, 16, [1, 4, 16]), (65, 2048, [65, 182, 512]), (600, 700, [600])],
)
def test_row_counts(lo: int, most: int, counts: list[int]) -> None:
    assert row_counts(Product(64, 64, "bf16", 1, lo, most)) == counts


def test_kernels_run_on_every_copy_of_the_weights() -> None:
    _, region = plain(DType.F32)
    context = Context(Bucket(2, 5), Target.host(), LIMITS)
    backend = backend_for(context.target)
    (product,) = tuning_of(backend).products([region], context)
    race = tuning_of(backend).race(product, region, context)
    (library,) = build_races(backend, [race], context.target, CompileCache(None))
    assert weight_bytes(race) == 2 * 48 * 64 * 4
    copies = 5
    with KernelHost(race, library, Weights(copies * weight_bytes(race)), threads=2) as host:
        result = host._memory[2].view(np.float32)
        used = set()
        for kernel in range(len(race.choices)):
            table = host._tables[kernel].reshape(copies, race.row_words)
            assert set(table[:, 0]) == {kernel}
            used |= set(table[:, 1 + race.args.index(Operand(1))])
            result[:] = 0
            assert host.measure(kernel) > 0
            np.testing.assert_allclose(result[: 4 * 100], 48, rtol=1e-2)  # a sum of 48 ones
        assert len(used) == copies


def test_weights_exceed_the_cache_and_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferir.tune.kernel_host.last_level_cache_bytes", lambda: 1 << 20)
    assert Weights.size(1000) == 2 << 20
    assert Weights.size((3 << 20) + 1) == (3 << 20) + memory.ALIGNMENT
    monkeypatch.setattr("inferir.tune.kernel_host.available_bytes", lambda: 4096)
    with pytest.raises(InferirError, match="tuning needs 4,097 bytes of memory for weights, 4,096 are free"):
        Weights(4097)
