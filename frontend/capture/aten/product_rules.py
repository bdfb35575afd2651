"""Import rules of matrix products and gathers."""

from __future__ import annotations

from typing import Any

from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.ir.graph.graph import Value


def _transposed(imp: Importer, w: Value) -> Value:
    """[K, N] -> [N, K] without stacking two permutations."""
    if w.op == "tensor.permute" and w.node.attrs["perm"] == (1, 0):
        return w.node.operands[0]
    return imp.op("tensor.permute", w, perm=(1, 0))


@rule("aten.linear.default")
def _linear(imp: Importer, x: Imports, w: Imports, bias: Imports = None) -> Imports:
    operands = [imp.value(x), imp.value(w)] + ([] if bias is None else [imp.value(bias)])
    return imp.op("tensor.linear", *operands)


@rule("aten.addmm.default")
def _addmm(imp: Importer, bias: Imports, x: Imports, w: Imports, beta: float = 1, alpha: float = 1) -> Imports:
    if beta != 1 or alpha != 1 or imp.argument(0).dim() != 1:
        raise imp.refuse("only addmm(bias, x, w) with a vector bias is supported")
    return imp.op("tensor.linear", imp.value(x), _transposed(imp, imp.value(w)), imp.value(bias))


@rule("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def _matmul(imp: Importer, a: Imports, b: Imports) -> Imports:
    x, y = imp.value(a), imp.value(b)
    if x.type.rank < 2 or y.type.rank < 2:
        raise imp.refuse("products with vectors are not supported")
    if x.type.shape[-1] == 1:  # an outer product: exact as a broadcast multiplication
        return imp.op("tensor.mul", x, y)
    if y.type.rank == 2:
        return imp.op("tensor.linear", x, _transposed(imp, y))
    return imp.op("tensor.matmul", x, y)


@rule("aten.embedding.default")
def _embedding(imp: Importer, w: Imports, ids: Imports, *_: Any) -> Imports:
    return imp.op("tensor.embedding", imp.value(w), imp.value(ids))


@rule("aten.index.Tensor", "aten.index_select.default")
def _index(imp: Importer, x: Imports, *where: Any) -> Imports:
    if isinstance(where[0], int):
        dim, index = where[0], where[1]
    else:
        dim, index = 0, where[0][0]
        if index is None or len(where[0]) > 1:
            raise imp.refuse("indexing with several tensors, or past the first axis, is not supported")
    value, rows = imp.value(x), imp.value(index)
    if dim or not rows.type.dtype.is_int:
        raise imp.refuse(f"indexing axis {dim} with {rows.type} is not supported")
    if value.type.rank == 2:
        return imp.op("tensor.embedding", value, rows)
    if rows.type.rank != 1:
        raise imp.refuse(f"indexing {value.type} with {rows.type} is not supported")
    return imp.op("tensor.gather_rows", value, rows)
