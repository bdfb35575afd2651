"""Rotary frequencies of GGUF files beside transformers' own for the same scaling."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_models import tiny

from inferir.frontend.capture.rope import check_rope, longest_sequence, needs_lengths
from inferir.frontend.checkpoint.huggingface import api
from inferir.frontend.gguf.gguf_file import load_config
from inferir.frontend.gguf.gguf_rope import EXPLICIT


def explicit(path: Path) -> tuple[torch.Tensor, float]:
    config = load_config(path)
    check_rope(config)
    assert not needs_lengths(config)
    assert config.rope_parameters["rope_type"] == EXPLICIT
    frequencies, magnitude = api().rope_init[EXPLICIT](config, torch.device("cpu"))
    return frequencies, magnitude


def theirs(kind: str, **parameters: float) -> tuple[torch.Tensor, float]:
    from transformers import LlamaConfig

    rope = {"rope_type": kind, "rope_theta": 10000.0, **parameters}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}
    out = api().rope_init[kind](LlamaConfig(**sizes, rope_parameters=rope), torch.device("cpu"))
    assert isinstance(out, tuple)
    return out


def test_factors_written_for_llama3_scaling_give_llama3_scaling(tmp_path: Path) -> None:
    """A converter writes that scaling as a tensor: 1, the factor, or in between by wavelength."""
    factor, low, high, original = 8.0, 1.0, 4.0, 256
    out = []
    for i in range(8):
        wave = 2 * math.pi * 10000.0 ** (i / 8)
        smooth = (original / wave - low) / (high - low)
        middle = 1 / ((1 - smooth) / factor + smooth)
        out.append(1.0 if wave < original / high else factor if wave > original / low else middle)
    gguf = tiny("llama").tensor("rope_freqs.weight", np.array(out, np.float32))
    got, magnitude = explicit(gguf.write(tmp_path / "model.gguf"))
    scaling = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    want, _ = theirs("llama3", **scaling, original_max_position_embeddings=original)
    assert torch.allclose(got, want, rtol=1e-6)
    assert magnitude == 1.0


@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0])
def test_linear_and_yarn(factor: float, tmp_path: Path) -> None:
    keys = {"rope__scaling__factor": factor, "rope__scaling__original_context_length": 64}
    path = tiny("llama", **keys, rope__scaling__type="linear").write(tmp_path / "linear.gguf")
    assert torch.allclose(explicit(path)[0], theirs("linear", factor=factor)[0], rtol=1e-6)
    path = tiny("llama", **keys, rope__scaling__type="yarn").write(tmp_path / "yarn.gguf")
    got, magnitude = explicit(path)
    want, attention = theirs("yarn", factor=factor, original_max_position_embeddings=64)
    assert torch.allclose(got, want, rtol=1e-6)
    assert magnitude == pytest.approx(attention)


def test_the_files_context_is_the_longest_sequence(tmp_path: Path) -> None:
    """`context_length` is the length with the scaling, not before it."""
    path = tiny("llama", rope__scaling__factor=4.0).write(tmp_path / "model.gguf")
    assert longest_sequence(load_config(path)) == 512
