"""`inferir inspect`: summary, JSON, graphs, and a page that needs nothing else."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.inspect.artifact_page import artifact_page
from inferir.inspect.inspect_artifact import short_provenance, view_artifact
from inferir.ir.contract.artifact import read_manifest, write_manifest
from inferir.ir.contract.manifest import Manifest


@pytest.fixture(scope="module")
def manifest(tiny_artifact: Path) -> Manifest:
    return read_manifest(tiny_artifact)


def test_summary(cli: Callable[..., Any], tiny_artifact: Path, manifest: Manifest) -> None:
    result = cli("inspect", tiny_artifact)
    assert (result.status, result.err) == (0, "")
    words = " ".join(result.out.split())
    assert f"{manifest.model.name} (LlamaForCausalLM)" in words
    assert f"{manifest.model.parameters:,} as f32" in words
    assert "2 layers, full attention, 2 KV heads of 16" in words
    assert "64 tokens, 8 sequences" in words
    assert all(k.name in words for b in manifest.buckets for k in b.kernels)
    assert all(b.name in words for b in manifest.buckets)


def test_json_counts_the_calls_of_a_step(cli: Callable[..., Any], tiny_artifact: Path, manifest: Manifest) -> None:
    found = cli("inspect", tiny_artifact, "--json").json
    assert found["digest"] == manifest.digest
    assert found["bytes"] == sum(f.stat().st_size for f in tiny_artifact.rglob("*") if f.is_file())
    for bucket in manifest.buckets:
        used = [k for k in found["kernels"] if bucket.name in k["buckets"]]
        assert sum(k["calls_per_step"] for k in used) == len(bucket.program)
        assert [k["name"] for k in used] == [k.name for k in bucket.kernels]
        assert [k["tile"] for k in used] == [k.tile for k in bucket.kernels]
    assert found["memory"]["kv_block_bytes"] == manifest.memory.kv_block_bytes
    assert found["refusals"] == (tiny_artifact / "ir" / "refusals.txt").read_text().splitlines()


@pytest.mark.parametrize("which", ["captured", "kernels"])
def test_graphs(cli: Callable[..., Any], tiny_artifact: Path, which: str) -> None:
    assert cli("inspect", tiny_artifact, "--ir", which).out == (tiny_artifact / "ir" / f"{which}.txt").read_text()


def test_a_damaged_graph_is_named(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_artifact, tmp_path / "art")
    file = copy / "ir" / "kernels.txt"
    file.write_text(file.read_text().replace("rms_norm", "rms_morn", 1))
    assert f"{file}: checksum mismatch" in fails("inspect", copy, "--ir", "kernels")


def test_no_artifact(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "an artifact made by `inferir compile`?" in fails("inspect", tmp_path)


def page_of(text: str) -> ET.Element:
    """The page, which is well-formed XML too."""
    return ET.fromstring(text)


def test_the_page(cli: Callable[..., Any], tiny_artifact: Path, manifest: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert cli("inspect", tiny_artifact, "--html", file).status == 0
    text = file.read_text()
    root = page_of(text)
    shown = "\n".join(root.itertext())
    drawn = "\n".join(t for svg in root.iter("svg") for t in svg.itertext())
    for bucket in manifest.buckets:
        assert bucket.name in shown
        assert all(k.name in shown and k.name in drawn for k in bucket.kernels)
    assert "nn.rms_norm" in drawn
    assert all(line in shown for line in (tiny_artifact / "ir" / "refusals.txt").read_text().splitlines())
    assert list(tmp_path.iterdir()) == [file]


def test_the_page_requests_nothing(tiny_artifact: Path) -> None:
    text = artifact_page(view_artifact(tiny_artifact))
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    for element in page_of(text).iter():
        assert element.tag not in ("script", "link", "img", "iframe", "object")
        assert "src" not in element.attrib
        assert element.attrib.get("href", "#").startswith("#")


def test_every_reference_in_the_page_has_a_target(tiny_artifact: Path) -> None:
    elements = list(page_of(artifact_page(view_artifact(tiny_artifact))).iter())
    ids = {e.attrib["id"] for e in elements if "id" in e.attrib}
    wanted = {e.attrib["href"][1:] for e in elements if "href" in e.attrib}
    assert {"memory", "kernels"} <= wanted <= ids


def test_names_are_escaped(tiny_artifact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_artifact, tmp_path / "art")
    manifest = read_manifest(copy)
    model = msgspec.structs.replace(manifest.model, name="<b>&\"'</b>")
    write_manifest(copy, msgspec.structs.replace(manifest, model=model))
    root = page_of(artifact_page(view_artifact(copy)))
    assert root.findtext("body/h1") == "<b>&\"'</b>"


def test_a_page_that_cannot_be_written(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "page.html"
    assert f"{file}: cannot be written: No such file" in fails("inspect", tiny_artifact, "--html", file)


def test_short_provenance() -> None:
    paths = ["model.layers.0.mlp", "model.layers.1.mlp", "model.norm", "model.layers.12.mlp"]
    assert short_provenance(paths) == "model.layers.*.mlp (3), model.norm"
    assert short_provenance([]) == ""
