"""The repaired interpreter itself, on small kernels written by hand."""

import pytest
import torch
import triton

from inferir.codegen.triton.kernel_source import KernelSource
from inferir.codegen.triton.kernels.rowwise_region import HEAD
from inferir.ir.errors import CodegenError
from inferir.testing.triton_interpreter import Run, repair, run_interpreted


def kernel(*statements: str, params: str = "x, y") -> KernelSource:
    body = "".join(f"    {line}\n" for line in ("i = tl.arange(0, 1024)", *statements))
    return KernelSource("k", f"{HEAD}def k({params}):\n{body}", (0, 1), tuple((p, "") for p in params.split(", ")))


def edge_values() -> torch.Tensor:
    """float32 numbers around every kind of bf16 rounding boundary."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (1024,), generator=generator, dtype=torch.int64).to(torch.int32)
    bits[::4] = (bits[::4] & ~0xFFFF) | 0x8000  # ties
    bits[1::8] = (bits[1::8] & ~0xFFFF) | 0x7FFF
    bits[2::16] &= 0x807FFFFF - 2**32  # subnormal numbers
    x = bits.view(torch.float32)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])
    return torch.where(x.isnan(), torch.ones(()), x)


def test_conversions_round_to_nearest_even_and_functions_to_the_last_place() -> None:
    x = edge_values()
    small = torch.linspace(-8, 8, 1024)
    statements = [
        f"tl.store(y + {i} * 1024 + i, libdevice.{f}(v))" for i, f in enumerate(("exp", "tanh", "erf", "sin"))
    ]
    runs = [
        Run(kernel("tl.store(y + i, tl.load(x + i).to(tl.bfloat16))"), (1,), [x, torch.zeros(1024).bfloat16()]),
        Run(kernel("tl.store(y + i, tl.load(x + i).to(tl.float32))"), (1,), [x.bfloat16(), torch.zeros(1024)]),
        Run(kernel("tl.store(y + i, tl.load(x + i).to(tl.int32))"), (1,), [small.bfloat16(), torch.zeros(1024).int()]),
        Run(kernel("v = tl.load(x + i)", *statements), (1,), [small, torch.zeros(4, 1024)]),
    ]
    given = [run.tensors[1].clone() for run in runs]
    to_half, from_half, to_int, functions = (out[1] for out in run_interpreted(runs))
    assert torch.equal(to_half.view(torch.int16), x.bfloat16().view(torch.int16))
    assert torch.equal(from_half, x.bfloat16().float())
    assert torch.equal(to_int, small.bfloat16().int())
    wide = small.double()
    expect = torch.stack([wide.exp(), wide.tanh(), wide.erf(), wide.sin()]).float()
    assert torch.equal(functions, expect)
    assert all(torch.equal(run.tensors[1], before) for run, before in zip(runs, given, strict=True))


def test_what_would_be_silently_wrong_is_refused() -> None:
    half = torch.ones(1024).bfloat16()
    sums = kernel("tl.store(y + i, tl.load(x + i) + tl.load(x + i))")
    with pytest.raises(CodegenError, match="add on half-precision values; convert them to float32 first"):
        run_interpreted([Run(sums, (1,), [half, half])])


def test_the_death_of_the_child_is_an_error_here() -> None:
    far = kernel("tl.store(y + 1000000000000 + i.to(tl.int64), tl.load(x + i))")
    with pytest.raises(CodegenError, match=r"interpreter \(exit status -?\d+\)"):
        run_interpreted([Run(far, (1,), [torch.zeros(1024), torch.zeros(1024)])])


def test_an_untested_version_is_refused_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    before = dict(vars(InterpreterBuilder))
    monkeypatch.setattr(triton, "__version__", "9.9.9")
    with pytest.raises(CodegenError, match=r"tested with Triton 3\.7\.1, not 9\.9\.9"):
        repair()
    assert dict(vars(InterpreterBuilder)) == before
