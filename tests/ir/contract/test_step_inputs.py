"""The table of step inputs: shapes, who fills them, and what leaves a row of logits alone."""

import dataclasses

import torch

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, STEP_INPUTS, WORDS, Writer, mask_words
from inferir.ir.contract.symbols import SYMBOLS
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import torch_dtype
from inferir.ir.graph.registry import opdef
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.sampling_params import SamplingParams


def test_dimensions_are_numbers_and_known_symbols() -> None:
    found = {d for i in STEP_INPUTS.values() for d in i.dims if not isinstance(d, int)}
    assert found - {WORDS} < SYMBOLS.keys()


def test_what_a_request_says_is_found_under_the_name_of_the_input() -> None:
    params = {f.name for f in dataclasses.fields(SamplingParams)}
    request = {f.name for f in dataclasses.fields(Request)}
    assert {i.name for i in SAMPLE_INPUTS if i.writer is Writer.PARAMS} <= params
    assert {i.name for i in SAMPLE_INPUTS if i.writer is Writer.REQUEST} <= request


def test_neutral_rows_take_the_most_likely_token() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 70)
    sizes = {"R": 5, "E": 3, WORDS: 3}
    operands = [
        torch.full([sizes[d] for d in i.dims], -5 if i.neutral is None else i.neutral, dtype=torch_dtype(i.dtype))
        for i in SAMPLE_INPUTS
    ]
    draw = opdef("sample.draw").evaluate
    assert draw is not None
    assert draw(Attrs({"valid": 70}), logits, *operands).tolist() == logits.argmax(1).tolist()


def test_a_bit_per_token() -> None:
    assert [mask_words(n) for n in (1, 32, 33, 64, 65)] == [1, 1, 2, 2, 3]
