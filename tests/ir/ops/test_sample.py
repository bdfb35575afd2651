"""Drawing tokens: greedy rows, the distribution of draws, and that rows do not influence each other."""

import math

import pytest
import torch
from sample_bodies import sample_case

from inferir.ir.errors import IRError
from inferir.ir.formats.int8_rows import FORMAT as INT8_ROWS
from inferir.ir.formats.panels import FORMAT as PANELS
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.sample import kept, operand_types, uniform

torch.set_num_threads(1)

LOW = float("-inf")
DT = {torch.float32: DType.F32, torch.uint8: DType.U8}


def draw(logits: torch.Tensor, valid: int | None = None, **operands: torch.Tensor) -> torch.Tensor:
    case = sample_case(logits, valid, **operands)
    (out,) = run_body(case.body, case.tensors)
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.int32
    return out


def drawn(
    logits: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor, counter: torch.Tensor, valid: int
) -> torch.Tensor:
    return draw(logits, valid, temperature=temperature, seed=seed.int(), counter=counter.int())


def test_temperature_zero_is_the_first_maximum_of_valid_entries() -> None:
    logits = torch.randn(50, 40)
    logits[:, 33] = 100.0
    logits[7, [3, 9]] = 50.0
    zeros = torch.zeros(50)
    out = drawn(logits, zeros, torch.arange(50), torch.arange(50), valid=30)
    assert torch.equal(out.long(), logits[:, :30].argmax(1))
    assert out[7] == 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("varies", ["seed", "counter"])
def test_draws_follow_the_softmax(temperature: float, varies: str) -> None:
    """A chi-squared test with 7 degrees of freedom; 35 is beyond the 0.00002 tail."""
    n = 20000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -0.5, 0.25])
    seed = torch.arange(n) if varies == "seed" else torch.full((n,), 1234)
    counter = torch.arange(n) if varies == "counter" else torch.full((n,), 5)
    out = drawn(logits.expand(n, 8).contiguous(), torch.full((n,), temperature), seed, counter, valid=8)
    expect = (logits / temperature).softmax(0) * n
    seen = torch.bincount(out.long(), minlength=8).float()
    assert float(((seen - expect) ** 2 / expect).sum()) < 35


def test_rows_do_not_depend_on_their_neighbours() -> None:
    logits, temperature = torch.randn(16, 100), torch.rand(16)
    seed, counter = torch.randint(-(2**31), 2**31 - 1, (16,)), torch.randint(0, 1000, (16,))
    together = drawn(logits, temperature, seed, counter, valid=100)
    for i in torch.randperm(16).tolist():
        row = slice(i, i + 1)
        assert drawn(logits[row], temperature[row], seed[row], counter[row], valid=100) == together[i]
    order = torch.randperm(16)
    assert torch.equal(drawn(logits[order], temperature[order], seed[order], counter[order], 100), together[order])


def test_noise_of_neighbouring_seeds_counters_and_entries_is_unrelated() -> None:
    n = 4000
    near = torch.tensor([0, 1, 2, -1, 2**31 - 1])
    for rows in (uniform(near, torch.zeros(5), n), uniform(torch.zeros(5), near, n), uniform(near, near, n)):
        assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 5 / n**0.5
    row = uniform(torch.tensor([3]), torch.tensor([4]), n)[0]
    assert torch.corrcoef(torch.stack([row[:-1], row[1:]]))[0, 1].abs() < 5 / n**0.5
    assert not torch.equal(
        uniform(torch.tensor([1]), torch.tensor([2]), n), uniform(torch.tensor([2]), torch.tensor([1]), n)
    )


def test_noise_is_inside_the_open_interval_and_even() -> None:
    u = uniform(torch.arange(50), torch.arange(50), 4000)
    assert 0 < float(u.min()) < 1e-4
    assert 1 - 1e-4 < float(u.max()) < 1
    counts = torch.histc(u, 20, 0, 1)
    assert float(((counts - 10000) ** 2 / 10000).sum()) < 55  # 19 degrees of freedom, 0.00003 tail


def mixed(x: int) -> int:
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        x = ((x ^ (x >> shift)) * multiplier) % 2**32
    return x ^ (x >> 16)


def test_noise_is_fixed_by_seed_counter_and_entry() -> None:
    """Draws of a recorded seed must not change between versions: the same numbers in plain integers."""
    seeds, counters = [7, -1, 2**31 - 1], [0, 123456, -(2**31)]
    noise = uniform(torch.tensor(seeds), torch.tensor(counters), 3)
    for r, (seed, counter) in enumerate(zip(seeds, counters, strict=True)):
        key = mixed(seed % 2**32 ^ mixed((counter + 0x9E3779B9) % 2**32))
        for i in range(3):
            assert float(noise[r, i]) == ((mixed(key ^ mixed(i + 1)) >> 10) + 0.5) / 2**22


def test_misuse_is_refused() -> None:
    b = Builder()
    types = operand_types(TensorType((R, 8), DType.F32))
    good = {n: b.input(n, t) for n, t in types.items()}
    logits = b.input("logits", TensorType((R, 8), DType.F32))
    with pytest.raises(IRError, match="valid = 9 of 8"):
        b.op("sample.draw", logits, *good.values(), valid=9)
    with pytest.raises(IRError, match="operand temperature is i32"):
        b.op("sample.draw", logits, good["top_k"], *list(good.values())[1:], valid=8)
    wide = b.input("wide", TensorType((R, 33), DType.F32))
    with pytest.raises(IRError, match="operand bitmask is"):
        b.op("sample.draw", wide, *good.values(), valid=8)
    with pytest.raises(IRError, match="expected f32 rows"):
        b.op("sample.draw", b.input("x", TensorType((R, 8), DType.BF16)), *good.values(), valid=8)


def test_mask_edits_and_temperature_apply_in_order() -> None:
    """Greedy over 4 tokens, worked out by hand."""
    logits = torch.tensor([[1.0, 2.0, 3.0, -1.0]]).repeat(6, 1)
    lists = {
        "edit_ids": torch.tensor([2, 2, 3, 0, 1, 2]).int(),
        "edit_bias": torch.tensor([0.0, LOW, 9.0, 1.0, 0.0, -4.0]),
        "edit_multiplier": torch.tensor([2.0, 1.0, 2.0, 1.0, 1.0, 4.0]),
        "edit_offset": torch.tensor([0.0, 0.0, 0.0, -0.5, 1.25, 0.0]),
    }
    out = draw(
        logits,
        masked=torch.tensor([0, 1, 0, 0, 0, 1]).int(),
        bitmask=torch.tensor([[0], [0b1001], [0], [0], [0], [0b1100]]).int(),
        edit_begin=torch.tensor([0, 0, 1, 2, 3, 5]).int(),
        edit_count=torch.tensor([1, 0, 1, 1, 3, 1]).int(),
        **lists,
    )
    # 3 / 2 < 2; tokens 0 and 3 only; 2 is banned; (-1 + 9) / 2 = 4; 2.5, 0.75, -4; (3 - 4) * 4 = -4 < -1
    assert out.tolist() == [1, 0, 1, 3, 0, 3]


def test_filters_keep_a_head_of_the_sorted_row() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]).log()
    kept_ids = [
        kept(row, *given).nonzero().flatten().tolist()
        for given in (
            (0, 1.0, 0.0),
            (-1, 1.0, 0.0),
            (5, 1.0, 0.0),
            (1, 1.0, 0.0),
            (2, 1.0, 0.0),
            (0, 0.39, 0.0),
            (0, 0.41, 0.0),
            (0, 0.81, 0.0),
            (0, 1.0, 0.49),
            (0, 1.0, 1.0),
            (2, 0.49, 0.0),  # 0.4 of what top-k leaves, 0.8, is enough
            (4, 0.99, 0.3),
        )
    ]
    assert kept_ids == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
        [1],
        [1, 2, 3],
        [1],
        [1, 2, 3],
        [0, 1, 2, 3, 4],
        [1, 2, 3],
        [1],
        [1],
        [1, 2, 3],
    ]


def test_a_row_without_a_drawable_entry_gives_minus_one() -> None:
    logits = torch.stack([torch.full((9,), LOW), torch.full((9,), math.nan), torch.zeros(9)])
    for temperature in (0.0, 1.0):
        assert draw(logits, temperature=torch.full((3,), temperature)).tolist()[:2] == [-1, -1]


def test_greedy_is_the_first_maximum_of_a_product() -> None:
    w = torch.randn(90, 8)
    w[70] = w[4] = 3 * w[4]
    x = torch.stack([w[4], w[12] * 9, -w[4], torch.full((8,), float("nan")), torch.zeros(8)])
    b = Builder()
    quantized = INT8_ROWS.pack(w, Attrs({"valid": 80}))
    (packed,) = PANELS.pack(w, Attrs(PANELS.defaults))
    operands = [
        b.input(f"x{i}", TensorType(tuple(t.shape), DT[t.dtype])) for i, t in enumerate((x, packed, *quantized))
    ]
    out = b.op("sample.argmax", *operands, n=90, valid=80)
    assert str(out.type) == "i32[5]"
    (tokens,) = run_body(Graph(tuple(operands), (out,), ("y",)), (x, packed, *quantized))
    want = (x @ w.T)[:, :80].argmax(1).tolist()
    assert tokens.tolist() == [4, want[1], want[2], -1, 0]
    with pytest.raises(IRError, match="int8_rows of f32"):
        b.op("sample.argmax", *operands[:2], operands[4], operands[3], operands[4], n=90, valid=80)
    with pytest.raises(IRError, match="valid = 91 of 90"):
        b.op("sample.argmax", *operands, n=90, valid=91)
