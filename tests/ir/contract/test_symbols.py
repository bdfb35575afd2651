"""The table of symbols: bounds, the order of counts, and what is generated from both."""

import re

import pytest
from small_limits import limits

from inferir.codegen.tvm.source import COUNT_NAMES, entry_head
from inferir.ir.contract.symbols import COUNTED, SYMBOLS, StepCounts
from inferir.ir.graph import dims


def test_bounds() -> None:
    found = limits(max_model_len=1000, max_tokens=128, max_seqs=8, block_size=16).bounds
    edits = 8 * (1000 + 4096)
    assert found == {"T": 128, "S": 8, "R": 8, "G": 8, "A": 128 + 12, "M": 128 + 12, "E": edits, "MB": 63}


def test_no_step_has_more_logit_rows_than_tokens() -> None:
    few = limits(max_tokens=4, max_seqs=8, max_rows=300)
    assert few.bound("R") == few.bound("G") == 4
    assert few.bound("E") == 4 * (few.max_model_len + 4096)
    assert limits(max_seqs=8, max_rows=300).bound("R") == 300


def test_what_has_no_bound_is_a_key_error() -> None:
    for name in ("NB", "Q"):
        with pytest.raises(KeyError, match=name):
            limits().bound(name)


def test_counts_have_one_order() -> None:
    """Kernels receive what the host writes, place by place."""
    assert [s.count for s in COUNTED] == list(StepCounts._fields)
    assert {s.name for s in SYMBOLS.values() if s.count} == {s.name for s in COUNTED}
    assert COUNT_NAMES == ("n_t", "n_s", "n_r", "n_a", "n_m", "n_g")
    assert re.findall(r"n_\w+(?=: T.int32)", entry_head("k", ())) == list(COUNT_NAMES)
    assert StepCounts(tokens=1, seqs=2, rows=3, items=4, merges=5, argmax=6) == (1, 2, 3, 4, 5, 6)


def test_every_symbol_is_a_dimension() -> None:
    assert dims.SYMBOLS.keys() == SYMBOLS.keys()
    assert (str(dims.T), str(dims.G), str(dims.MB), str(dims.NB)) == ("T", "G", "MB", "NB")
