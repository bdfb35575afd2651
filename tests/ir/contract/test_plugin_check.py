"""Artifacts that need something of another distribution where they are served."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from plugin_distributions import Plugged

from inferir.ir.contract.artifact import MANIFEST, read_manifest, write_manifest
from inferir.ir.contract.manifest import PluginRecord
from inferir.ir.contract.plugin_check import check_plugins
from inferir.ir.errors import ArtifactError
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import load_artifact


def record(kind: str, name: str, *, serves: bool = True) -> PluginRecord:
    return PluginRecord(kind=kind, name=name, distribution="acme-fpga", version="1.5", serves=serves)


def test_what_serving_needs_must_be_installed(plugged: Plugged) -> None:
    needed = [record("executors", "fpga")]
    with pytest.raises(ArtifactError, match=r"needs the executor 'fpga' of acme-fpga 1\.5, .*; install acme-fpga"):
        check_plugins(needed)
    check_plugins([record("passes", "faster", serves=False)])
    plugged([], "acme", "raise RuntimeError", executors={"fpga": "FPGA"})  # it is not imported for that
    check_plugins(needed)


def test_a_loader_refuses_before_it_maps_anything(compiled_artifact: Path, tmp_path: Path) -> None:
    place = tmp_path / "art"
    shutil.copytree(compiled_artifact, place)
    write_manifest(place, msgspec.structs.replace(read_manifest(place), plugins=(record("executors", "cpu9"),)))
    with pytest.raises(ArtifactError, match=r"the artifact needs the executor 'cpu9' of acme-fpga 1\.5"):
        load_artifact(place, check_target)
    assert read_manifest(place).plugins[0].name == "cpu9"  # which `inferir inspect` shows


def test_a_cache_kind_that_is_not_installed_is_named_with_its_distribution(
    compiled_artifact: Path, tmp_path: Path
) -> None:
    manifest = msgspec.structs.replace(read_manifest(compiled_artifact), plugins=(record("kv", "latent"),))
    place = tmp_path / "art"
    place.mkdir()
    write_manifest(place, manifest)
    raw = (place / MANIFEST).read_bytes()
    assert raw.count(b'"type":"attention"') == 1
    from inferir.ir.contract import artifact

    changed = raw.replace(b'"type":"attention"', b'"type":"latent"')
    start = artifact._DIGEST_AT
    changed = changed[: start.start] + artifact._digest(changed).encode() + changed[start.stop :]
    (place / MANIFEST).write_bytes(changed)
    with pytest.raises(ArtifactError, match=r"needs the KV cache kind 'latent' of acme-fpga 1\.5"):
        read_manifest(place)
