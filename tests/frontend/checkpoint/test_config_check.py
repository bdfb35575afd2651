"""Sizes in config.json from which no model can be built are refused by their key."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.frontend.checkpoint.config_check import check_config, check_layers
from inferir.ir.errors import FrontendError


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
        ({"text_config": {"n_head": -1}}, r"text_config\.n_head is -1"),
        ({"rope_theta": float("nan")}, "rope_theta is nan, not a finite number"),
        ({"a": [{"b": float("inf")}]}, r"a\[0\]\.b is inf"),
    ],
)
def test_sizes_out_of_range_are_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(FrontendError, match=rf"config\.json: {named}"):
        check_config(config)


def test_what_models_state_is_accepted() -> None:
    check_config({"hidden_size": 48, "num_key_value_heads": [2, 4], "head_dim": None})
    check_config({"time_step_limit": [0.0, float("inf")]})


def test_deep_nesting_is_refused() -> None:
    config: dict[str, Any] = {}
    for _ in range(100):
        config = {"a": config}
    with pytest.raises(FrontendError, match="nested too deeply"):
        check_config(config)


def test_more_layers_than_tensors_are_refused() -> None:
    with pytest.raises(FrontendError, match="num_hidden_layers is 600, but the checkpoint has 20 tensors"):
        check_layers({"num_hidden_layers": 600}, lambda: 20)
    check_layers({"num_hidden_layers": 600}, lambda: 6000)


def test_tensors_are_counted_only_for_many_layers() -> None:
    def count() -> int:
        raise AssertionError("counted")

    check_layers({"num_hidden_layers": 512}, count)
