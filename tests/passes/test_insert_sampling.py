"""insert-sampling: tokens come out of the step."""

import pytest
import torch

from inferir.ir.errors import PassError
from inferir.ir.graph import structural_text
from inferir.ir.parser import parse_graph
from inferir.passes.insert_sampling import InsertSampling

BEFORE = """graph @g(%x: f32[R, 6]) -> (%1 as "logits") {
  %1 = tensor.neg(%x) : f32[R, 6]
}"""
AFTER = """graph @g(%x: f32[R, 6], %temperature: f32[R], %seed: i32[R], %counter: i32[R])
    -> (%1 as "logits", %2 as "tokens") {
  %1 = tensor.neg(%x) : f32[R, 6]
  %2 = sample.draw(%1, %temperature, %seed, %counter) {valid=6} : i32[R]
}"""


def test_golden() -> None:
    assert structural_text(InsertSampling().run(parse_graph(BEFORE))) == structural_text(parse_graph(AFTER))


def test_greedy_rows_take_the_largest_valid_logit(run) -> None:
    x = torch.tensor([[-1.0, -5.0, 0.0, 0.0, 0.0, -9.0], [-3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    for valid, tokens in ((None, [5, 0]), (5, [1, 0])):
        out = run(InsertSampling(valid).run(parse_graph(BEFORE)), x=x, temperature=torch.zeros(2))
        assert out["tokens"].tolist() == tokens


@pytest.mark.parametrize("valid", [0, 7])
def test_a_wrong_vocabulary_is_refused(valid: int) -> None:
    with pytest.raises(PassError, match=f"insert-sampling: {valid} tokens may be drawn, but there are 6 logits"):
        InsertSampling(valid).run(parse_graph(BEFORE))
