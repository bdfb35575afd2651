"""Arrays for the parameters of a region's kernel."""

from collections.abc import Sequence
from typing import TypeVar

from inferir.ir.contract.kernel_args import KernelArg, Operand, Result

Array = TypeVar("Array")


def in_order(args: Sequence[KernelArg], operands: Sequence[Array], results: Sequence[Array]) -> list[Array]:
    """What each parameter stands for, of a kernel that has operands and results only."""
    known = {**{Operand(i): a for i, a in enumerate(operands)}, **{Result(i): a for i, a in enumerate(results)}}
    return [known[arg] for arg in args]
