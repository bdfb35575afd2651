"""What ends a text: claims of all files, joined, with their sources."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.frontend.source.end_ids import Claim, EndIdWarning, config_claims, gguf_claims, join, stated
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError


@pytest.mark.parametrize(
    ("value", "ids"),
    [(5, (5,)), ([5, 9], (5, 9)), ([9, 9], (9,)), (0, (0,)), (None, ()), ([], ()), (-1, ()), ([-1, 4], (4,))],
)
def test_forms_of_a_field(value: Any, ids: tuple[int, ...]) -> None:
    assert [c.ids for c in stated(value, "here")] == ([ids] if ids else [])


@pytest.mark.parametrize("value", ["5", True, 5.0, [5, "6"], {"id": 5}, [[5]], [None]])
def test_other_types_are_refused_by_name(value: Any) -> None:
    with pytest.raises(FrontendError, match=r"here is .*, not a token id or a list of them"):
        stated(value, "here")


def test_ids_are_joined_in_order_with_all_sources() -> None:
    claims = [Claim(ids=(5, 9), source="a"), Claim(ids=(9, 7), source="b"), Claim(ids=(9,), source="b")]
    ids, decisions = join(claims, 10, {9: "</s>"})
    assert ids == (5, 9, 7)
    assert decisions == (
        Decision(subject="end of text", value="5", source="a"),
        Decision(subject="end of text", value="9 </s>", source="a; b"),
        Decision(subject="end of text", value="7", source="b"),
    )


def test_an_id_beyond_the_vocabulary_is_warned_about() -> None:
    with pytest.warns(EndIdWarning, match="config: eos names the id 10, but the model's vocabulary has 10 tokens"):
        ids, _ = join([Claim(ids=(10, 9), source="config: eos")], 10, {})
    assert ids == (9,)


def test_configs_of_a_folder() -> None:
    claims = config_claims({"eos_token_id": [1]}, {"eos_token_id": 2, "text_config": {"eos_token_id": 3}})
    assert [(c.ids, c.source) for c in claims] == [
        ((1,), "generation_config.json: eos_token_id"),
        ((2,), "config.json: eos_token_id"),
        ((3,), "config.json: text_config.eos_token_id"),
    ]
    assert config_claims({}, {"text_config": None, "eos_token_id": None}) == ()


def test_metadata_of_a_gguf_file() -> None:
    keys = {f"tokenizer.ggml.{kind}_token_id": number for kind, number in (("eom", 3), ("eos", 1), ("eot", 2))}
    assert [(c.ids, c.source) for c in gguf_claims(keys, "m.gguf")] == [
        ((1,), "m.gguf: tokenizer.ggml.eos_token_id"),
        ((2,), "m.gguf: tokenizer.ggml.eot_token_id"),
        ((3,), "m.gguf: tokenizer.ggml.eom_token_id"),
    ]
