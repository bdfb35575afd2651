"""`check_backend`: all backends keep to it, and planted faults are found in one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inferir.codegen.backend import BuildJob, Context, LoweredBucket
from inferir.codegen.lower.decompose import decompose
from inferir.codegen.tvm import scalar
from inferir.codegen.tvm.backend import TvmBackend
from inferir.codegen.tvm.emitter import TvmEmitter
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.registry import all_ops
from inferir.testing import CheckFailedError, check_backend
from inferir.testing.region_cases import every_region, model_regions
from inferir.testing.row_cases import ALL, case_of

ROWS = {
    "add_norm in bf16": case_of("add_norm", DType.BF16).run(),
    "reductions in f32": case_of("reductions", DType.F32).run(),
}


def test_regions_of_all_anchors_are_checked() -> None:
    anchors = {case.region.attrs["anchor"] for case in every_region().values()}
    assert anchors == {"rowwise", "matmul", "attention", "argmax"}
    names = {str(case.region.attrs["name"]) for case in model_regions().values()}
    assert names >= {"linear_gated_act", "linear_softcap", "draw", "argmax", "rotary_kv_write", "embedding_rms_norm"}


def test_every_elementwise_op_is_in_a_body() -> None:
    bodies = [case_of(name, DType.F32).body for name in ALL]
    used = {n.op for body in bodies for n in (*body.nodes, *decompose(body).nodes)}
    assert {name for name, op in all_ops().items() if op.elementwise} <= used


def test_kernels_for_cpus() -> None:
    report = check_backend("cpu")
    assert report.compared == len(report.supported)
    half = {name for name in ALL if name != "numbers_integer"}
    others = {"integer_reductions": "i32 has no kernel", "outer_join": "is cut", "ranges": "a range of"}
    assert {n for n in report.refused if n.endswith("f16") and not n.endswith("bf16")} >= {
        f"{n} in f16" for n in half - {"integer_reductions"}
    }
    rest = {n: why for n, why in report.refused.items() if not n.endswith(" f16")}
    assert set(rest) == {f"{name} in {d}" for name in others for d in ("f32", "bf16")}
    assert all(others[n.split(" ")[0]] in why for n, why in rest.items())


def test_kernels_for_gpus_in_the_interpreter() -> None:
    report = check_backend("cuda")
    assert report.compared == len(report.supported)
    assert report.compared >= 3 * len(ALL)
    assert not [n for n in report.refused if n.rpartition(" in ")[0] in ALL], "all row-wise bodies have kernels"


def ops_of(graph: Graph | None) -> list[str]:
    assert graph is not None
    return [n.op for n in graph.nodes if not n.op.startswith("core.")]


def test_a_kernel_that_is_off_is_found_in_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalar._FLOAT, "sub", scalar._FLOAT["add"])  # type: ignore[index]
    with pytest.raises(CheckFailedError, match="backend tvm: the kernel of region reductions in f32 computes") as found:
        check_backend("cpu", regions=ROWS)
    assert ops_of(found.value.graph) == ["tensor.sub"]
    assert all(part in str(found.value) for part in ("where:", "instead of", "%x0 = ", "region:", "graph @"))


def test_a_rounding_that_is_left_out_is_found_in_two_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either op alone is rounded as it is stored."""
    monkeypatch.setattr(TvmEmitter, "rounded", lambda self, x, dtype, place: x)
    with pytest.raises(CheckFailedError, match="the kernel of region random_0 in bf16 computes") as found:
        check_backend("cpu", regions={"random_0 in bf16": case_of("random_0", DType.BF16).run()})
    assert len(ops_of(found.value.graph)) == 2


class Planted(TvmBackend):
    """A backend with one fault."""

    fault = ""
    runs = 0

    def key(self, regions: Mapping[str, Node], context: Context) -> dict[str, Any]:
        if self.fault == "empty key":
            return {}
        return {**super().key(regions, context), **({"where": object()} if self.fault == "key" else {})}

    def lower(self, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
        if self.fault == "crash":
            raise IndexError("x")
        if self.fault == "nameless":
            raise CodegenError("cannot do that")
        return super().lower(regions, context)

    def module(self, kernels: Sequence[Any]) -> str:
        Planted.runs += 1
        more = {"counter": f"# {Planted.runs}\n", "path": "# /tmp/kernels\n", "python": "def (\n"}
        return super().module(kernels) + more.get(self.fault, "")

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Any = None) -> list[bytes]:
        return [f"{job.name}{id(job)}{job.source[:9]}".encode() for job in jobs]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash", "raised IndexError for region add_norm in bf16, not CodegenError"),
        ("nameless", "refuses a region without naming it: cannot do that"),
        ("counter", "makes another module of the same kernels the second time"),
        ("path", "the module's text holds a path of this machine, /tmp"),
        ("python", "the module's text is not Python"),
        ("empty key", "its key is empty"),
        ("key", "its key is no JSON"),
    ],
)
def test_what_a_backend_must_not_do(fault: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Planted()
    backend.fault = fault
    monkeypatch.setattr(Planted, "build", lambda self, jobs, *rest: [b"library" for _ in jobs])
    with pytest.raises(CheckFailedError, match=f"backend tvm:? {message}"):
        check_backend(backend, regions=ROWS)


def test_a_library_that_is_another_one_each_time() -> None:
    bytes_of = iter(range(100))
    backend = Planted()
    backend.build = lambda jobs, *rest: [str(next(bytes_of)).encode() for _ in jobs]  # type: ignore[method-assign]
    with pytest.raises(CheckFailedError, match="builds other bytes of the same module the second time"):
        check_backend(backend, regions=ROWS)
