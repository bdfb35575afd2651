"""`inferir compile`: flags, report, cache use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifacts import SMALL

from inferir.ir.contract.artifact import read_manifest, verify_files

OTHER = ("--dtype", "bf16", "--target", "x86-64-v3", "--block-size", "16", "-O1", "--disable-pass", "merge-qkv")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compile cache that the tests of this file share, in the order in which they run."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(autouse=True)
def _cache(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERIR_CACHE", str(warm))


def test_flags_reach_the_artifact_and_the_second_run_hits_the_cache(
    cli: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    first = cli("compile", tiny_model, "-o", tmp_path / "a", *SMALL, *OTHER)
    assert (first.status, first.err) == (0, "")
    assert "Compile cache: 0 hits" in first.out
    assert "1 captured graph: no graph entry is stored" in " ".join(first.out.split())
    manifest = read_manifest(tmp_path / "a")
    limits = manifest.limits
    assert (limits.max_tokens, limits.max_seqs, limits.max_model_len, limits.block_size) == (1, 1, 32, 16)
    assert (manifest.model.dtype.value, manifest.target.name) == ("bf16", "x86-64-v3")
    assert (manifest.options["opt_level"], manifest.options["disabled_passes"]) == (1, ["merge-qkv"])
    assert [b.name for b in manifest.buckets] == ["t1"]
    again = cli("compile", tiny_model, "-o", tmp_path / "b", *SMALL, *OTHER)
    assert "Compile cache: hit, everything came from it" in again.out
    assert read_manifest(tmp_path / "b").digest == manifest.digest


def test_json_report_of_a_miss(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    art = tmp_path / "art"
    result = cli("compile", tiny_model, "-o", art, *SMALL, "--json")
    report = result.json
    assert report["artifact"] == str(art)
    assert report["bytes"] == sum(f.stat().st_size for f in art.rglob("*") if f.is_file())
    assert set(report["seconds"]) == {"load", "trace", "passes", "kernels", "weights", "write", "total"}
    libraries = report["cache"]["kinds"]["bucket"]
    assert (libraries["hits"], libraries["misses"]) == (0, 1)
    assert 'target.name (stored "x86-64-v3", now "x86-64-v' in libraries["reason"]
    assert report["memory"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    verify_files(art)


def test_graphs_can_be_printed_and_dumped(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    art, dump = tmp_path / "art", tmp_path / "dump"
    result = cli("compile", tiny_model, "-o", art, *SMALL, *OTHER, "--print-ir-after", "insert-kv", "--dump-dir", dump)
    assert result.out.count("// after insert-kv\ngraph @") == 1
    assert "kv.write" in result.out
    names = {f.name for f in dump.iterdir()}
    assert "00-input.txt" in names
    assert any(n.endswith("-fuse-regions.txt") for n in names)
    stages = {f.name for f in (dump / "t1").iterdir()}
    assert {"module.py", "module.so"} < stages
    assert sum(n.startswith("k") and n.endswith("_attention.py") for n in stages) == 1
    all_of_them = cli("compile", tiny_model, "-o", art, *SMALL, *OTHER, "--print-ir-after", "all", "--json")
    assert all_of_them.json["artifact"] == str(art)
    assert all_of_them.err.count("// after ") > 10


def test_a_kernel_can_be_edited_and_given_back(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    """A replaced kernel computes what its file says, and the artifact tells that it does."""
    art, dump, edited = tmp_path / "art", tmp_path / "dump", tmp_path / "edited"
    assert cli("compile", tiny_model, "-o", art, *SMALL, *OTHER, "--dump-dir", dump).status == 0
    plain = read_manifest(art)
    name = next(f.name for f in (dump / "t1").iterdir() if "rms_norm" in f.name)
    (edited / "t1").mkdir(parents=True)
    text = (dump / "t1" / name).read_text()
    assert "inf_rsqrt" in text
    (edited / "t1" / name).write_text(text.replace("inf_rsqrt", "inf_exp"))
    result = cli("compile", tiny_model, "-o", art, *SMALL, *OTHER, "--override", edited)
    assert f"Replaced by hand: t1/{name}." in result.out
    (bucket,) = read_manifest(art).buckets
    assert list(bucket.replaced) == [name]
    assert f"t1/{name}" in cli("inspect", art).out
    assert cli("inspect", art, "--json").json["buckets"][0]["replaced"] == bucket.replaced
    assert read_manifest(art).files[bucket.library] != plain.files[bucket.library]
    again = cli("compile", tiny_model, "-o", art, *SMALL, *OTHER)
    assert "Compile cache: hit, everything came from it" in again.out
    assert read_manifest(art).digest == plain.digest


def test_an_unknown_pass_is_refused(fails: Callable[..., str], tiny_model: Path, tmp_path: Path) -> None:
    for option in ("--print-ir-after", "--disable-pass"):
        line = fails("compile", tiny_model, "-o", tmp_path / "art", *SMALL, option, "fuse-everything")
        assert "no pass named 'fuse-everything'; passes are canonicalise" in line
    assert not (tmp_path / "art").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--dtype", "f8"), "dtype 'f8' is not supported"),
        (("--target", "pdp11"), "unknown target 'pdp11'"),
        (("--buckets", "1-2"), "they must cover 1-1 tokens"),
        (("--block-size", "20"), "block_size is 20, not a multiple of 16"),
        (("--max-model-len", "1000"), "max_model_len"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
    ],
)
def test_bad_options_are_named(
    fails: Callable[..., str], tiny_model: Path, tmp_path: Path, option: tuple[str, str], words: str
) -> None:
    assert words in fails("compile", tiny_model, "-o", tmp_path / "art", *SMALL, *option)
    assert not (tmp_path / "art").exists()


def test_levels_are_written_like_a_compilers(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    assert cli("compile", tiny_model, "-o", tmp_path / "art", "-O4").status == 2
    assert cli("compile", tiny_model, "-o", tmp_path / "art", "-Ofast").status == 2
