"""Passes that other distributions bring: where they stand in the pipeline, and which are left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from plugin_distributions import write_distribution

CODE = """
from inferir.passes.context import PassOptions
from inferir.passes.plugin_passes import AddedPass

class Nothing:
    name, why, requires, ensures = "nothing", "to see where it stands", frozenset(), frozenset()
    def run(self, graph):
        return graph

NOTHING = AddedPass("merge", 2, lambda options, context: Nothing())
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
