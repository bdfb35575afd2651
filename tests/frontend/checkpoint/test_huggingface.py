"""The adapter to transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inferir.frontend.capture import hooks
from inferir.frontend.checkpoint import huggingface
from inferir.frontend.checkpoint.huggingface import api, one_line, skeleton, state_types, tied_names
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError

SaveTiny = Callable[..., Path]


@pytest.fixture
def fresh_api() -> Iterator[None]:
    """Let `api` run its checks anew, now and after the test."""
    api()
    api.cache_clear()
    yield
    api.cache_clear()


@pytest.mark.parametrize("version", ["4.57.1", "5.3.0", "6.0.0"])
@pytest.mark.usefixtures("fresh_api")
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
    with pytest.raises(FrontendError, match=rf"transformers {version} is not supported; install a version from 5\.17"):
        api()


@pytest.mark.usefixtures("fresh_api")
def test_a_missing_internal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    monkeypatch.delattr(masking_utils, "ALL_MASK_ATTENTION_FUNCTIONS")
    with pytest.raises(FrontendError, match=r"has no transformers\.masking_utils\.ALL_MASK_ATTENTION_FUNCTIONS"):
        api()


def config_of(save_tiny: SaveTiny, **options: Any) -> Any:
    return load_source(str(save_tiny("llama", **options))).config


def test_skeleton_has_true_buffers_and_tied_names(save_tiny: SaveTiny) -> None:
    hooks.register()
    config = config_of(save_tiny, tie_word_embeddings=True)
    model = skeleton(config, torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tied_names(model) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert model.model.rotary_emb.inv_freq[0] == 1.0
    types = state_types(model)
    assert "lm_head.weight" not in types
    assert {t.dtype for t in types.values()} == {torch.bfloat16}
    assert config._attn_implementation != huggingface.IMPLEMENTATION


def test_a_model_that_cannot_be_built_is_one_line(save_tiny: SaveTiny) -> None:
    config = config_of(save_tiny)
    config.hidden_act = "no_such_activation"
    with pytest.raises(FrontendError, match="cannot build a causal language model of type 'llama'") as error:
        skeleton(config, torch.float32, "eager")
    assert "\n" not in str(error.value)


def test_one_line() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line(ValueError()) == "ValueError"
    assert one_line("x" * 400, 10) == "x" * 9 + "…"
