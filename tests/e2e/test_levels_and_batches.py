"""What must not change an answer: optimisation level, instruction set, neighbours, chunk sizes, threads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
from artifacts import compile_tiny

from inferir import LLM, SamplingParams
from inferir.ir.contract.target import TARGETS, Target, host_features, missing_features

GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
PROMPTS = [np.random.default_rng(n).integers(0, 256, n).tolist() for n in (1, 3, 30, 70)]


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "llama": tiny_model,
        "gemma3": families.write(families.gemma3(), tmp_path_factory.mktemp("gemma3") / "model"),
    }


@pytest.fixture(scope="module")
def artifacts(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Artifacts by model and options, each compiled once."""
    root = tmp_path_factory.mktemp("artifacts")
    made: dict[str, Path] = {}

    def get(model: str, **options: Any) -> Path:
        key = f"{model}-{'-'.join(f'{k}={v}' for k, v in sorted(options.items()))}".replace("+", "_")
        if key not in made:
            made[key] = root / key
            compile_tiny(models[model], made[key], **options)
        return made[key]

    return get


def tokens(artifact: Path, **options: Any) -> list[list[int]]:
    with LLM(artifact, **options) as llm:
        return [o.token_ids for o in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("model", ["llama", "gemma3"])
@pytest.mark.parametrize("level", [0, 1, 3])
def test_every_optimisation_level_gives_the_same_tokens(model: str, level: int, artifacts: Callable[..., Path]) -> None:
    level_only = artifacts(model, dtype="f32", opt_level=level, **families.ONE_BUCKET)
    assert tokens(level_only) == tokens(artifacts(model, dtype="f32"))


@pytest.mark.parametrize("target", [t for t, x in TARGETS.items() if x.kind == "cpu" and x != Target.host()])
def test_every_target_gives_the_same_float32_tokens(target: str, artifacts: Callable[..., Path]) -> None:
    if missing_features(TARGETS[target], host_features()):
        pytest.skip(f"this machine cannot run {target}")
    for_target = artifacts("llama", dtype="f32", target=target, **families.ONE_BUCKET)
    assert tokens(for_target) == tokens(artifacts("llama", dtype="f32"))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_logits_have_the_same_bits_alone_in_a_crowd_and_in_chunks(
    model: str, dtype: str, artifacts: Callable[..., Path]
) -> None:
    with LLM(artifacts(model, dtype=dtype), threads=2) as llm:
        together = llm.logits(PROMPTS)
        alone = [llm.logits([p])[0] for p in PROMPTS]
        chunked = {c: llm.logits(PROMPTS, chunk=c) for c in (1, 5, 16)}
    with LLM(artifacts(model, dtype=dtype), threads=1) as llm:
        single = llm.logits(PROMPTS)
    for i, want in enumerate(together):
        assert np.array_equal(want, alone[i])
        assert np.array_equal(want, single[i])
        for size, got in chunked.items():
            assert np.array_equal(want, got[i]), f"chunks of {size}"


def test_a_seeded_sample_does_not_depend_on_its_neighbours(artifacts: Callable[..., Path]) -> None:
    warm = SamplingParams(max_tokens=20, temperature=1.0, seed=7, ignore_eos=True)
    other = SamplingParams(max_tokens=9, temperature=1.5, seed=1, ignore_eos=True)
    with LLM(artifacts("llama", dtype="f32")) as llm:
        alone = llm.generate([PROMPTS[2]], warm)[0].token_ids
        crowd = llm.generate(PROMPTS, [GREEDY, other, warm, other])
        again = llm.generate([PROMPTS[2]], SamplingParams(max_tokens=20, temperature=1.0, seed=8, ignore_eos=True))
    assert crowd[2].token_ids == alone
    assert again[0].token_ids != alone


def test_a_list_of_end_ids_ends_generation_with_each(models: dict[str, Path], tmp_path: Path) -> None:
    """The third and fifth greedy tokens are declared as ends: the text stops at the first of them."""
    import json
    import shutil

    model = tmp_path / "model"
    shutil.copytree(models["llama"], model)
    compile_tiny(model, tmp_path / "plain", dtype="f32")
    with LLM(tmp_path / "plain") as llm:
        free = llm.generate([PROMPTS[2]], GREEDY)[0].token_ids
    ends = [free[4], free[2]]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    compile_tiny(model, tmp_path / "ends", dtype="f32")
    with LLM(tmp_path / "ends") as llm:
        params = SamplingParams(max_tokens=16, temperature=0.0)
        out = llm.generate([PROMPTS[2]], params)[0]
        on = llm.generate([PROMPTS[2]], GREEDY)[0]
    first = min(free.index(e) for e in ends)
    assert out.token_ids == free[: first + 1]
    assert out.finish_reason == "stop"
    assert on.token_ids == free


def test_a_padded_vocabulary_is_never_sampled(tmp_path: Path) -> None:
    """Rows of the head beyond the tokenizer's ids, however large, are never drawn."""
    import torch
    from artifacts import VOCAB
    from safetensors.torch import load_file, save_file

    model = families.write(families.llama(vocab_size=VOCAB + 64, tie_word_embeddings=False), tmp_path / "model")
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"][VOCAB:] = weights["lm_head.weight"][:64] * 50
    save_file(weights, file, metadata={"format": "pt"})
    hot = SamplingParams(max_tokens=8, temperature=2.0, seed=3, ignore_eos=True)
    compile_tiny(model, tmp_path / "art", dtype="f32", **families.ONE_BUCKET)
    with LLM(tmp_path / "art") as llm:
        outputs = llm.generate([PROMPTS[1]] * 12, [hot] * 12)
    assert max(t for o in outputs for t in o.token_ids) < VOCAB
    assert torch.isfinite(weights["lm_head.weight"]).all()
