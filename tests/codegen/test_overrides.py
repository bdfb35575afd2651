"""Kernels of other distributions in the place of ours: which regions get them, what they may change, who is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from joiner_backend import Joiner, context, region
from plugin_distributions import Plugged

from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import build_buckets, dump_stages, lower_bucket
from inferir.codegen.overrides import OVERRIDES
from inferir.ir.errors import CodegenError

CODE = """
from dataclasses import replace
from inferir.codegen.overrides import KernelOverride

def only(name):
    return lambda region, context: region.attrs["name"] == name

def shout(kernel, region, context):
    return replace(kernel, source=f"{kernel.name}, shouted")

SHOUT = KernelOverride("joiner", only("exp"), shout, targets=("cpu",))
TWICE = KernelOverride("joiner", only("exp"), shout)
OTHER = KernelOverride("tvm", only("exp"), shout)
FAR = KernelOverride("joiner", only("exp"), shout, targets=("cuda", "x86-64-v4"))
STAYS = KernelOverride("joiner", only("exp"), lambda kernel, region, context: None)
RENAMES = KernelOverride("joiner", only("exp"), lambda kernel, region, context: replace(kernel, name="mine"))
GIVES_TEXT = KernelOverride("joiner", only("exp"), lambda kernel, region, context: "text")
BREAKS = KernelOverride("joiner", lambda region, context: 1 / 0, shout)
"""


def lowered(*kept: str) -> list[tuple[str, str]]:
    regions = {name: region(name) for name in kept}
    bucket = lower_bucket(Joiner(), regions, context())
    return [(k.source, r.made_by) for k, r in zip(bucket.kernels, bucket.meta.kernels, strict=True)]


def test_a_kernel_takes_the_place_of_ours_and_is_named(plugged: Plugged, tmp_path: Path) -> None:
    plugged([OVERRIDES], "acme", CODE, kernels={"loud": "SHOUT"})
    assert lowered("exp", "neg") == [("k0_exp, shouted", "loud of acme 1.5"), ("k1_neg for t1", "")]
    cache, backend, regions = CompileCache(tmp_path / "cache"), Joiner(), [region("exp"), region("neg")]
    for _ in range(2):  # the second is from the cache
        (built,) = build_buckets(backend, regions, [context()], cache)
        assert built.library == b"K0_EXP, SHOUTED\nK1_NEG FOR T1"
        assert [k.made_by for k in built.records({})] == ["loud of acme 1.5", ""]
    assert backend.built == ["t1"]
    dump_stages(tmp_path / "dump", backend, regions, [context()], [built], {})
    assert (tmp_path / "dump" / "t1" / "k0_exp.py").read_text() == "k0_exp, shouted"


@pytest.mark.parametrize("name", ["OTHER", "FAR", "STAYS"])
def test_others_leave_the_kernel_as_it_is(plugged: Plugged, name: str) -> None:
    plugged([OVERRIDES], "acme", CODE, kernels={"loud": name})
    assert lowered("exp") == [("k0_exp for t1", "")]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"a": "SHOUT", "b": "TWICE"}, r"the kernel overrides a of acme 1\.5 and b of acme 1\.5 both match"),
        ({"a": "RENAMES"}, r"the kernel override a of acme 1\.5 changes 'name' of k0_exp, which must stay"),
        ({"a": "GIVES_TEXT"}, r"the kernel override a of acme 1\.5 gives a str, not a Kernel"),
        ({"a": "BREAKS"}, r"region exp: the kernel override a of acme 1\.5 fails: ZeroDivisionError"),
    ],
)
def test_what_an_override_may_not_do(plugged: Plugged, entries: dict[str, str], reason: str) -> None:
    plugged([OVERRIDES], "acme", CODE, kernels=entries)
    with pytest.raises(CodegenError, match=reason):
        lowered("exp")
