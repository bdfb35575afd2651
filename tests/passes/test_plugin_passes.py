"""Passes that other distributions bring: where they stand in the pipeline, and which are left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_distributions import Plugged, write_distribution

from inferir.ir.errors import PassError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.types import TensorType
from inferir.ir.plugin_registry import PluginWarning
from inferir.passes.context import PassContext, PassOptions
from inferir.passes.manager import PassRecord, run_passes, run_pipeline
from inferir.passes.pipeline import build_pipeline, pass_names
from inferir.passes.plugin_passes import PASSES

CODE = """
from inferir.passes.context import PassOptions
from inferir.passes.plugin_passes import AddedPass

class Nothing:
    name, why, requires, ensures = "nothing", "to see where it stands", frozenset(), frozenset()
    def run(self, graph):
        return graph

NOTHING = AddedPass("merge", 2, lambda options, context: Nothing())
class Broken(Nothing):
    name = "broken"
    def run(self, graph):
        return [][0]

BROKEN = AddedPass("merge", 2, lambda options, context: Broken())
RARE = AddedPass("merge", None, lambda options, context: Nothing())
UNMADE = AddedPass("merge", 2, lambda options, context: 1 / 0)
LOST = AddedPass("polish", 0, lambda options, context: Nothing())
NUMBER = 7
"""
PROGRAM = """
import json
from inferir.passes.context import PassContext, PassOptions
from inferir.passes.pipeline import build_pipeline, pass_names
from inferir.passes.plugin_passes import PASSES
names = {n: [p.name for p in build_pipeline(PassOptions(opt_level=n), PassContext())] for n in (1, 2)}
names["off"] = [p.name for p in build_pipeline(PassOptions(disabled=frozenset({"nothing"})), PassContext())]
print(json.dumps({"names": names, "all": pass_names(), "left": {i.name: i.reason for i in PASSES.all() if i.reason}}))
"""


def test_a_pass_stands_at_the_end_of_its_phase_from_its_level_on(tmp_path: Path) -> None:
    entries = {"nothing": "NOTHING", "lost": "LOST", "number": "NUMBER", "missing": "MISSING"}
    write_distribution(tmp_path, "acme", CODE, passes=entries)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    found = json.loads(done.stdout)
    names = found["names"]
    assert "nothing" not in names["1"] + names["off"]
    at = names["2"].index("nothing")
    assert (names["2"][at - 1], names["2"][at + 1]) == ("merge-qkv", "insert-kv")
    assert names["2"][:at] + names["2"][at + 1 :] == names["off"]
    assert "nothing" in found["all"]
    assert found["left"].keys() == {"lost", "number", "missing"}
    assert found["left"]["lost"].startswith("there is no phase 'polish'; phases are canonicalise, ")
    assert found["left"]["number"] == "it is no AddedPass but of type int"
    assert "has no attribute 'MISSING'" in found["left"]["missing"]


def names(**options: object) -> list[str]:
    return [p.name for p in build_pipeline(PassOptions(**options), PassContext())]  # type: ignore[arg-type]


def empty() -> Graph:
    b = Builder()
    x = b.input("x", TensorType((T, 4), DType.F32))
    return Graph((x,), (b.op("tensor.exp", x),))


def test_a_pass_that_is_asked_for_by_name_runs_at_any_level_or_refuses(plugged: Plugged) -> None:
    plugged([PASSES], "acme", CODE, passes={"nothing": "RARE", "missing": "MISSING"})
    with pytest.warns(PluginWarning, match=r"the pass 'missing' of acme 1\.5 is left out: AttributeError"):
        assert "nothing" not in names(opt_level=3)
    assert "nothing" in names(opt_level=0, enabled=frozenset({"nothing"}))
    with pytest.raises(PassError, match=r"pass 'missing' of acme 1\.5 is not usable: AttributeError"):
        names(enabled=frozenset({"missing"}))
    with pytest.raises(PassError, match="there is no pass named 'none'"):
        run_pipeline(empty(), None, PassOptions(enabled=frozenset({"none"})))


def test_a_pass_that_is_disabled_is_not_loaded(plugged: Plugged) -> None:
    plugged([PASSES], "acme", "raise RuntimeError", passes={"nothing": "NOTHING"})
    assert "nothing" not in names(disabled=frozenset({"nothing"}))
    assert "acme_code" not in sys.modules
    assert "nothing" in pass_names()


def test_a_name_of_ours_stays_ours(plugged: Plugged) -> None:
    own = names()
    plugged([PASSES], "acme", CODE, passes={"merge-qkv": "NOTHING"})
    with pytest.warns(PluginWarning, match=r"'merge-qkv' of acme 1\.5 is left out: that is the name of a pass of this"):
        assert names() == own


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"other": "NOTHING"}, r"the pass 'other' of acme 1\.5 calls itself 'nothing'"),
        ({"unmade": "UNMADE"}, r"the pass 'unmade' of acme 1\.5 cannot be made: ZeroDivisionError"),
    ],
)
def test_a_pass_that_cannot_be_made_refuses(plugged: Plugged, entries: dict[str, str], reason: str) -> None:
    plugged([PASSES], "acme", CODE, passes=entries)
    with pytest.raises(PassError, match=reason):
        names()


def test_records_say_whose_a_pass_was_and_so_does_a_failure(plugged: Plugged) -> None:
    plugged([PASSES], "acme", CODE, passes={"nothing": "NOTHING", "broken": "BROKEN"})
    made = {name: entry.make(PassOptions(), PassContext()) for name, entry in PASSES.load().items()}
    _, (record,) = run_passes(empty(), [made["nothing"]])
    assert record == PassRecord("nothing", record.seconds, False, "acme 1.5")
    with pytest.raises(PassError, match=r"the pass 'broken' of acme 1\.5 fails: IndexError"):
        run_passes(empty(), [made["broken"]])
