"""The manifest round-trips, and every way of damaging an artifact is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plugin_distributions import write_distribution
from small_limits import limits

from inferir.ir.contract.artifact import file_records, read_manifest, verify_files, write_manifest
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_reads import SlidingWindow
from inferir.ir.contract.kv_specs import AttentionSpec, decode_spec
from inferir.ir.contract.manifest import (
    ArenaArg,
    BucketRecord,
    Call,
    InputArg,
    IORecord,
    KernelParam,
    KernelRecord,
    KVArg,
    Manifest,
    MemoryRecord,
    ModelRecord,
    OutputArg,
    TensorRecord,
    WeightArg,
)
from inferir.ir.contract.target import TARGETS
from inferir.ir.errors import ArtifactError
from inferir.ir.graph.dtypes import DType


def bucket(lo: int, hi: int, *, decode: bool = False, **changes: Any) -> BucketRecord:
    params = tuple(KernelParam(name=n, dtype="float32") for n in "abcde")
    kernel = KernelRecord(
        id=0, name="k", region="r", anchor="rowwise", params=params, tile={"m": 8}, provenance=("model.norm",)
    )
    args = (InputArg("ids"), WeightArg("w"), ArenaArg(64), KVArg(0, 0, "k"), OutputArg("logits"))
    record = BucketRecord(
        name=f"{'d' if decode else 't'}{lo}-{hi}",
        lo=lo,
        hi=hi,
        decode=decode,
        library="kernels/a.so",
        kernels=(kernel,),
        program=(Call(kernel=0, args=args),),
        attn_tile=8,
    )
    return msgspec.structs.replace(record, **changes)


def make(folder: Path, **changes: Any) -> Manifest:
    for name, content in {
        "kernels/a.so": b"\x7fELF",
        "weights/w.safetensors": bytes(range(256)),
        "tokenizer/t": b"",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    spec = AttentionSpec(block_size=16, kv_heads=2, head_dim=8, value_dim=8, dtype=DType.BF16)
    fields: dict[str, Any] = {
        "model": ModelRecord(name="m", architecture="A", dtype=DType.BF16, vocab_size=9, hidden_size=8, num_layers=1),
        "target": TARGETS["x86-64-v3"],
        "limits": limits(max_tokens=31, max_seqs=4),
        "memory": MemoryRecord(weight_bytes=256, arena_bytes=128, scratch_bytes=0, kv_block_bytes=spec.page_bytes),
        "inputs": tuple(
            IORecord(name=n, dtype=DType.I32, shape=s)
            for n, s in {"ids": ("T",), "slots": ("T",), "block_tables": ("S", "MB"), "attn_items": ("A", 6)}.items()
        ),
        "outputs": (IORecord(name="logits", dtype=DType.F32, shape=("R", 9)),),
        "kv": (KVCacheGroup(spec=spec, layers=(0,)),),
        "buckets": (bucket(1, 8), bucket(8, 32), bucket(1, 5, decode=True)),
        "weights": {
            "w": TensorRecord(file="weights/w.safetensors", offset=64, nbytes=64, dtype=DType.F32, shape=(4, 4))
        },
        "files": file_records(folder),
    }
    return Manifest(**(fields | changes))


def test_round_trip(tmp_path: Path) -> None:
    written = write_manifest(tmp_path, make(tmp_path))
    assert read_manifest(tmp_path) == read_manifest(tmp_path / "manifest.json") == written
    assert verify_files(tmp_path) == written
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernels", "manifest.json", "tokenizer", "weights"]
    raw = (tmp_path / "manifest.json").read_bytes()
    assert b'["input","ids"],["weight","w"],["arena",64],["kv",0,0,"k"],["output","logits"]' in raw
    assert str(tmp_path).encode() not in raw


LATENT = """
import msgspec
from inferir.ir.contract.kv_specs import KVCacheSpec, KVTensor
from inferir.ir.graph.dtypes import DType
class Latent(KVCacheSpec, msgspec.Struct, frozen=True, kw_only=True, tag="latent"):
    block_size: int
    rank: int
    @property
    def tensors(self):
        return (KVTensor("latent", (self.block_size, self.rank), DType.F32),)
"""


def test_specs_round_trip_by_tag() -> None:
    window = AttentionSpec(block_size=16, kv_heads=1, head_dim=4, value_dim=6, dtype=DType.F32, reads=SlidingWindow(5))
    group = KVCacheGroup(spec=window, layers=(0, 2))
    assert msgspec.json.decode(msgspec.json.encode(group), type=KVCacheGroup, dec_hook=decode_spec) == group
    assert [(t.role, t.shape, t.nbytes) for t in window.tensors] == [
        ("k", (1, 4, 16, 1), 256),
        ("v", (1, 16, 6, 1), 384),
    ]
    assert window.page_bytes == 640


def test_a_kind_of_cache_that_nobody_brings_is_named() -> None:
    raw = b'{"spec":{"type":"latent","block_size":16},"layers":[0]}'
    known = "manifest.json: unknown KV cache kind 'latent'; known: attention, full_attention, sliding_window, chunks"
    with pytest.raises(ArtifactError, match=known):
        msgspec.json.decode(raw, type=KVCacheGroup, dec_hook=decode_spec)


def test_another_distribution_brings_a_kind_of_cache(tmp_path: Path) -> None:
    write_distribution(tmp_path, "acme", LATENT, kv={"latent": "Latent"})
    code = f"""if True:
    import msgspec
    from inferir.ir.contract.kv_groups import KVCacheGroup
    from inferir.ir.contract.kv_specs import decode_spec
    raw = {b'{"spec":{"type":"latent","block_size":16,"rank":6},"layers":[0]}'!r}
    group = msgspec.json.decode(raw, type=KVCacheGroup, dec_hook=decode_spec)
    assert msgspec.json.decode(msgspec.json.encode(group), type=KVCacheGroup, dec_hook=decode_spec) == group
    print(group.spec.kind, group.spec.page_bytes, [name for name, *_ in group.caches()])
    """
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == "latent 384 ['latentcache.0']\n"


@pytest.mark.parametrize("name", ["kernels/a.so", "weights/w.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "delete"])
def test_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    write_manifest(tmp_path, make(tmp_path))
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "truncate" else b"")
    with pytest.raises(ArtifactError, match=name) as e:
        verify_files(tmp_path)
    assert "\n" not in str(e.value)


def test_every_flipped_byte_of_the_manifest_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, make(tmp_path))
    path = tmp_path / "manifest.json"
    raw = path.read_bytes()
    for at in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ArtifactError, match=r"manifest\.json"):
            read_manifest(path)
    for size in (0, 20, len(raw) // 2, len(raw) - 2):
        path.write_bytes(raw[:size])
        with pytest.raises(ArtifactError, match=r"manifest\.json"):
            read_manifest(path)


def test_missing_and_foreign_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not found"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"model": 1}')
    with pytest.raises(ArtifactError, match="not an Inferir manifest"):
        read_manifest(tmp_path)


def test_other_format_version(tmp_path: Path) -> None:
    write_manifest(tmp_path, msgspec.structs.replace(make(tmp_path), format=2))
    with pytest.raises(ArtifactError, match="format 2, this version of Inferir reads format 3"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": (bucket(1, 8), bucket(8, 31))}, "no bucket covers a step of 31 tokens"),
        ({"buckets": (bucket(1, 9), bucket(8, 32))}, "overlap"),
        ({"buckets": (bucket(1, 32, library="../x.so"),)}, "not listed in files"),
        ({"buckets": (bucket(1, 32, kernels=bucket(1, 2).kernels * 2),)}, "does not number its kernels"),
        ({"buckets": (bucket(1, 32, program=(Call(kernel=7, args=()),)),)}, "calls kernel 7"),
        ({"buckets": (bucket(1, 32, program=(Call(kernel=0, args=()),)),)}, "passes 0 arguments to k"),
        ({"buckets": (bucket(1, 32, program=(Call(kernel=0, args=(WeightArg("v"),) * 5),)),)}, "no weight 'v'"),
        ({"buckets": (bucket(1, 32, program=(Call(kernel=0, args=(ArenaArg(32),) * 5),)),)}, "arena offset 32"),
        ({"buckets": (bucket(1, 32, program=(Call(kernel=0, args=(KVArg(0, 1, "k"),) * 5),)),)}, "cache of layer 1"),
        (
            {
                "weights": {
                    "w": TensorRecord(file="weights/w.safetensors", offset=256, nbytes=4, dtype=DType.F32, shape=(1,))
                }
            },
            "beyond the end",
        ),
        (
            {
                "weights": {
                    "w": TensorRecord(file="weights/w.safetensors", offset=4, nbytes=4, dtype=DType.F32, shape=(1,))
                }
            },
            "not aligned",
        ),
        (
            {
                "weights": {
                    "w": TensorRecord(file="weights/w.safetensors", offset=0, nbytes=4, dtype=DType.F32, shape=(2,))
                }
            },
            "is not f32",
        ),
        ({"limits": limits(max_tokens=31, max_seqs=4, max_rows=3)}, "max_rows 3 is less than max_seqs 4"),
    ],
)
def test_inconsistent_manifest(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        write_manifest(tmp_path, make(tmp_path, **changes))


def test_path_outside_the_artifact(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    for name in ("../secret", "/etc/passwd", "a/../../b"):
        with pytest.raises(ArtifactError, match="plain relative path"):
            write_manifest(tmp_path, make(tmp_path, files={**manifest.files, name: manifest.files["tokenizer/t"]}))
