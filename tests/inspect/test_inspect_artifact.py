"""What `inferir inspect` shows of who made what."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from inferir.inspect.artifact_page import artifact_page
from inferir.inspect.inspect_artifact import as_json, plugin_rows, summary, view_artifact
from inferir.ir.contract.artifact import read_manifest, write_manifest
from inferir.ir.contract.manifest import PluginRecord


def test_what_is_not_ours_is_shown(tiny_artifact: Path, tmp_path: Path) -> None:
    """Stages from files and kernels and other parts of plug-ins, in the rows, the JSON and the page."""
    place = tmp_path / "art"
    shutil.copytree(tiny_artifact, place)
    manifest = read_manifest(place)
    first, *rest = manifest.buckets
    by_hand, other, *kernels = first.kernels
    by_hand = msgspec.structs.replace(by_hand, made_by="--override")
    other = msgspec.structs.replace(other, made_by="fast of acme 1.5")
    replaced = {f"{by_hand.name}.py": "0" * 64}
    changed = msgspec.structs.replace(first, kernels=(by_hand, other, *kernels), replaced=replaced)
    plugin = PluginRecord(kind="executors", name="fpga", distribution="acme", version="1.5", serves=True, detail="runs")
    write_manifest(place, msgspec.structs.replace(manifest, buckets=(changed, *rest), plugins=(plugin,)))
    view = view_artifact(place)
    assert dict(summary(view))["replaced by hand"] == f"{first.name}/{by_hand.name}.py"
    assert plugin_rows(view.manifest) == [("executors", "fpga", "acme 1.5", "to serve, too", "runs")]
    found = as_json(view)
    assert found["buckets"][0]["replaced"] == replaced
    assert found["plugins"] == [msgspec.to_builtins(plugin)]
    made = {(k["name"], k["buckets"], k["made_by"]) for k in found["kernels"] if k["made_by"]}
    assert made == {
        (by_hand.name, (first.name,), "--override"),
        (other.name, (first.name,), "fast of acme 1.5"),
    }
    page = artifact_page(view)
    for text in (f"{by_hand.name} (by --override)", f"{other.name} (by fast of acme 1.5)", "Plug-ins that took part"):
        assert text in page


def test_nothing_is_said_where_all_is_ours(tiny_artifact: Path) -> None:
    view = view_artifact(tiny_artifact)
    assert (plugin_rows(view.manifest), as_json(view)["plugins"]) == ([], [])
    assert "replaced by hand" not in dict(summary(view))
    assert "Plug-ins" not in artifact_page(view)
