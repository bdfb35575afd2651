"""Elementwise ops between a tensor and Python numbers near those that its type can hold, on every kind of data."""

import math
import random
from collections.abc import Sequence

import torch

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Value
from inferir.testing.row_bodies import Body, Make

ROWS = 3
WIDTH = 19  # a whole vector and two narrower ones
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "where")


def near(dtype: DType, rng: random.Random) -> list[float]:
    """Numbers at, beside and halfway between what `dtype` holds, and at the ends of what floats hold."""
    kind, out = torch_dtype(dtype), [math.inf, -math.inf, 3.0e38, 1e39, 70000.0, 1e-40, 2, -7, 0, 0.1]
    for _ in range(6):
        held = torch.tensor(rng.uniform(-4, 4), dtype=kind)
        above = torch.nextafter(held, torch.tensor(math.inf, dtype=kind))
        a, b = held.item(), above.item()
        out += [a, (a + b) / 2, math.nextafter((a + b) / 2, a), math.nextafter((a + b) / 2, b), a + (b - a) * 1e-4]
    return out


def data(dtype: DType, numbers: Sequence[float]) -> torch.Tensor:
    """What the numbers are rounded to, their neighbours, and special values, in an order of its own."""
    kind = torch_dtype(dtype)
    held = torch.tensor([float(n) for n in numbers]).to(kind)
    ends = [torch.full_like(held, sign * math.inf) for sign in (-1, 1)]
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-39, 3e38, 1.0]).to(kind)
    pool = torch.cat([held, *(torch.nextafter(held, end) for end in ends), special])
    order = torch.randint(len(pool), (ROWS * WIDTH,), generator=torch.Generator().manual_seed(len(pool)))
    order[: len(held)] = torch.arange(len(held))
    return pool[order].view(ROWS, WIDTH).contiguous()


def _numbers(op: str) -> Make:
    def make(b: Body) -> Sequence[Value]:
        rng = random.Random(op)
        numbers = [0.1, *rng.sample(near(b.dtype, rng), 12)]
        numbers = [n for n in numbers if n or op != "div"]  # TVM does not divide by a constant zero
        x = b.arg(T, WIDTH, data=data(b.dtype, numbers))
        out = []
        for number in numbers:
            pair = (b.op("tensor.gt", x, b.scalar(0.0)),) if op == "where" else ()
            out.append(b.op(f"tensor.{op}", *pair, x, b.scalar(number)))
            out.append(b.op(f"tensor.{op}", *pair, b.scalar(number), x))
        return out

    return make


def powers(b: Body) -> Sequence[Value]:
    """A base is rounded to the tensor's type, an exponent is not."""
    x = b.arg(T, WIDTH, data=torch.linspace(0.5, 3, ROWS * WIDTH).view(ROWS, WIDTH).to(torch_dtype(b.dtype)))
    return [b.op("tensor.pow", x, b.scalar(e)) for e in (0.3, 1.7, -1.3, 2, 2.001)] + [
        b.op("tensor.pow", b.scalar(n), x) for n in (0.3, 1.7, 3.3)
    ]


def integers(b: Body) -> Sequence[Value]:
    n = b.arg(T, WIDTH, dtype=DType.I32, data=torch.arange(-28, 29, dtype=torch.int32).view(ROWS, WIDTH))
    ops = [name for name in ARITHMETIC if name not in ("div", "where")]
    out = [b.op(f"tensor.{name}", n, b.scalar(k)) for name in ops for k in (-7, 0, 3)]
    return [*out, b.op("tensor.where", b.op("tensor.lt", n, b.scalar(3)), n, b.scalar(-1)), b.op("tensor.relu", n)]


def as_found(b: Body) -> Sequence[Value]:
    """0.1 in bf16 is above 0.1: whether they are equal says which of them was rounded."""
    x = b.arg(T, WIDTH, data=torch.full((ROWS, WIDTH), 0.1).to(torch_dtype(b.dtype)))
    return (b.op("tensor.where", b.op("tensor.le", x, b.scalar(0.1)), x, b.op("tensor.neg", x)),)


NUMBERS: dict[str, Make] = {
    **{f"numbers_{op}": _numbers(op) for op in ARITHMETIC},
    "numbers_pow": powers,
    "numbers_integer": integers,
    "numbers_chosen": as_found,
}
