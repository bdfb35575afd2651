"""An artifact whose model has no attention: no KV cache, no block tables, no work items."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.contract.artifact import read_manifest, write_manifest
from inferir.ir.contract.manifest import ArenaArg, BucketRecord


@pytest.fixture
def artifact(compiled_artifact: Path, tmp_path: Path) -> Path:
    """The tokens of `compiled_artifact` without the way through a cache."""
    path = tmp_path / "art"
    shutil.copytree(compiled_artifact, path)
    manifest = read_manifest(path)

    def without(bucket: BucketRecord) -> BucketRecord:
        mix, _, _, pick = bucket.program
        pick = msgspec.structs.replace(pick, args=(ArenaArg(0), *pick.args[1:]))
        return msgspec.structs.replace(bucket, program=(mix, pick))

    gone = ("slots", "block_tables", "attn_items")
    write_manifest(
        path,
        msgspec.structs.replace(
            manifest,
            kv=(),
            inputs=tuple(i for i in manifest.inputs if i.name not in gone),
            memory=msgspec.structs.replace(manifest.memory, kv_block_bytes=0),
            buckets=tuple(map(without, manifest.buckets)),
        ),
    )
    return path


def test_it_is_served_with_steps_of_its_own(artifact: Path, compiled_artifact: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    prompts = [[i + 1] * (i * 5 + 1) for i in range(9)]  # more than a step takes, and more than run at once
    with LLM(artifact, threads=2) as llm, LLM(compiled_artifact, threads=2) as usual:
        assert llm.engine.kv.groups == ()
        got = [o.token_ids for o in llm.generate(prompts, params)]
        assert got == [o.token_ids for o in llm.generate(prompts, params)]
        assert got == [o.token_ids for o in usual.generate(prompts, params)]
        assert llm.engine.stats().kv_blocks_used == 0
