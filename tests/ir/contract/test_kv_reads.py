"""Rules of what a token reads: one formula for integers, arrays, tensors and texts, and what follows from it."""

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.source import IndexText
from inferir.ir.contract.kv_reads import Chunks, FullAttention, Reads, SlidingWindow
from inferir.ir.contract.kv_specs import parse_reads
from inferir.ir.errors import IRError

RULES = [FullAttention(), SlidingWindow(1), SlidingWindow(7), Chunks(1), Chunks(20)]
TIR = {"truncdiv": lambda a, b: int(a / b)}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_is_the_same_on_integers_arrays_tensors_and_texts(rule: Reads) -> None:
    positions = range(60)
    want = [int(rule.first(p)) for p in positions]
    assert (rule.first(np.arange(60)) + np.zeros(60)).tolist() == want
    assert (rule.first(torch.arange(60)) + torch.zeros(60)).tolist() == want
    text = str(rule.first(IndexText("position")))
    assert [eval(text, {"T": type("T", (), TIR), "position": p}) for p in positions] == want


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_is_monotone_periodic_and_as_wide_as_it_says(rule: Reads) -> None:
    first = [int(rule.first(p)) for p in range(60)]
    assert first == sorted(first)
    assert all(f <= p for p, f in enumerate(first))
    if rule.period == 0:
        assert rule.reach is None
    else:
        assert first[rule.period :] == [f + rule.period for f in first[: -rule.period]]
        assert rule.reach == max(p - f + 1 for p, f in enumerate(first))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_text_of_a_rule_is_read_back(rule: Reads) -> None:
    assert parse_reads(str(rule)) == rule


def test_texts_that_are_no_rules() -> None:
    assert parse_reads("T") is None
    assert parse_reads("floor(T/2)") is None
    with pytest.raises(IRError, match="unknown KV cache kind 'nothing'"):
        parse_reads("nothing")
    with pytest.raises(IRError, match="sliding_window: "):
        parse_reads("sliding_window")
    with pytest.raises(IRError, match="attention"):
        parse_reads("attention")
