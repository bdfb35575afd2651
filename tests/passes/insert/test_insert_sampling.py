"""insert-sampling: tokens come out of the step."""

import pytest
import torch

from inferir.ir.errors import PassError
from inferir.ir.graph.graph import structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.passes.insert.insert_sampling import InsertSampling
from inferir.testing.steps import sample_operands

BEFORE = """graph @g(%x: f32[R, 6]) -> (%1 as "logits") {
  %1 = tensor.neg(%x) : f32[R, 6]
}"""
AFTER = """graph @g(%x: f32[R, 6], %temperature: f32[R], %top_k: i32[R], %top_p: f32[R], %min_p: f32[R], %seed: i32[R],
    %counter: i32[R], %masked: i32[R], %bitmask: i32[R, 1], %edit_begin: i32[R], %edit_count: i32[R], %edit_ids: i32[E],
    %edit_bias: f32[E], %edit_multiplier: f32[E], %edit_offset: f32[E])
    -> (%1 as "logits", %2 as "tokens") {
  %1 = tensor.neg(%x) : f32[R, 6]
  %2 = sample.draw(%1, %temperature, %top_k, %top_p, %min_p, %seed, %counter, %masked, %bitmask, %edit_begin,
    %edit_count, %edit_ids, %edit_bias, %edit_multiplier, %edit_offset) {valid=6} : i32[R]
}"""


def test_golden() -> None:
    assert structural_text(InsertSampling().run(parse_graph(BEFORE))) == structural_text(parse_graph(AFTER))


def test_greedy_rows_take_the_largest_valid_logit(run) -> None:
    x = torch.tensor([[-1.0, -5.0, 0.0, 0.0, 0.0, -9.0], [-3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    for valid, tokens in ((None, [5, 0]), (5, [1, 0])):
        out = run(InsertSampling(valid).run(parse_graph(BEFORE)), x=x, **sample_operands(2, 6))
        assert out["tokens"].tolist() == tokens


@pytest.mark.parametrize("valid", [0, 7])
def test_a_wrong_vocabulary_is_refused(valid: int) -> None:
    with pytest.raises(PassError, match=f"insert-sampling: {valid} tokens may be drawn, but there are 6 logits"):
        InsertSampling(valid).run(parse_graph(BEFORE))


def test_a_mask_and_an_edit_change_what_is_drawn(run) -> None:
    x = torch.tensor([[-9.0, -5.0, -4.0, -3.0, -2.0, -1.0]] * 2)
    given = sample_operands(2, 6)
    given |= {"masked": torch.tensor([1, 0]).int(), "bitmask": torch.tensor([[0b110], [0]]).int()}
    given |= {"edit_count": torch.tensor([0, 1]).int(), "edit_ids": torch.tensor([4]).int()}
    given |= {"edit_bias": torch.tensor([50.0]), "edit_multiplier": torch.ones(1)}
    out = run(InsertSampling().run(parse_graph(BEFORE)), x=x, **given)
    assert out["tokens"].tolist() == [1, 4]
