"""Values of GGUF tensors under the rules of transformers."""

from __future__ import annotations

import numpy as np
import pytest

from inferir.frontend.gguf.gguf_tensors import Planned, Sizes, changed, linear

SIZES = Sizes(8, 2, 12, heads=4, kv_heads=2, head_dim=3, turned=2, context=64, vocabulary=50, epsilon=1e-5)


def test_letters() -> None:
    assert SIZES.letters() == {"h": 8, "v": 50, "c": 64, "f": 12, "g": 24, "q": 12, "k": 6, "p": 24, "d": 3}


def test_interleaved_rows_become_two_halves_of_every_head() -> None:
    rows = np.arange(8)[:, None] * np.ones((1, 2))
    out = changed(rows, Planned(None, (8, 2), "interleaved", heads=2))
    assert out[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert out.shape == rows.shape


@pytest.mark.parametrize(
    ("change", "want"), [("", [[1, 2], [3, 4]]), ("minus one", [[0, 1], [2, 3]]), ("transpose", [[1, 3], [2, 4]])]
)
def test_other_changes(change: str, want: list[list[int]]) -> None:
    assert changed(np.array([[1, 2], [3, 4]]), Planned(None, (2, 2), change, heads=1)).tolist() == want


def test_a_bias_is_rearranged_as_its_weight_but_never_transposed() -> None:
    weight, bias = linear("a", "b", "q h", "!", "interleaved")
    assert (weight.shape, weight.group, bias.name, bias.shape, bias.change) == ("q h", "", "a.bias", "q", "interleaved")
    assert bias.group == ""
    assert linear("a", "b", "f h", "mlp", "transpose")[1].change == ""
    assert linear("a", "b", "f h", "mlp")[1].group == "mlp"
    assert len(linear("a", "b", "f h")) == 1
