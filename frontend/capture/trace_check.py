"""The trace check: may this capture be served? Three tests that every compile runs on the captured graph.

- Equality: the graph gives the logits of Hugging Face's eager code at lengths other than the traced one.
- Token locality: with attention replaced by a token-local stand-in, changing one token changes its own row only.
  Otherwise tokens that share a step would leak into each other.
- Positions: moving the tail of a sequence to other positions changes its rows. A model that ignores positions would be
  served wrong.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from inferir.frontend.capture.eager import eager_twin, model_logits
from inferir.frontend.capture.trace import TracedModel
from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.source.model_source import ModelSource
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.rewrite import transform

log = logging.getLogger(__name__)

LENGTHS = (1, 7, 13)
# Largest accepted relative root-mean-square error of the logits: half precision rounds after every op.
TOLERANCE = {DType.F32: 2e-4, DType.BF16: 6e-2, DType.F16: 1e-2}

Eager = Callable[[Sequence[int], Sequence[int]], torch.Tensor]


def check_capture(
    graph: Graph,
    weights: Mapping[str, torch.Tensor],
    eager: Eager,
    vocab_size: int,
    dtype: DType,
    max_positions: int = 0,
) -> Mapping[int, float]:
    """Run the three tests; returns the relative RMS error of the logits by length.

    Raises `UntraceableError` naming the failed test and, where known, the module at fault.

    eager: (ids, positions) -> logits [T, V] float32 by Hugging Face's code over the same weights. max_positions:
    the longest sequence the model can run (0 = no limit).
    """
    held = {name: weights[name] for name in graph.weights()}
    lengths = [n for n in LENGTHS if not max_positions or n <= max_positions]
    errors = _equality(graph, held, eager, vocab_size, dtype, lengths)
    stub = with_local_attention(graph)
    _locality(stub, held, vocab_size)
    _positions(stub, held, vocab_size, max_positions)
    return errors


def check_trace(traced: TracedModel, source: ModelSource) -> Mapping[int, float]:
    """`check_capture` for a traced model and the weights of its source. Raises `UntraceableError` or `WeightError`."""
    weights = traced.weights(source.weights)
    facts = traced.facts
    eager = partial(model_logits, eager_twin(source, weights, facts.tie_word_embeddings))
    errors = check_capture(traced.graph, weights, eager, facts.vocab_size, facts.dtype, facts.position_limit)
    found = ", ".join(f"{error:.1e} at {n} tokens" for n, error in errors.items())
    log.info("%s: the trace check passed, relative errors %s", source.name, found or "unknown")
    return errors


def tokens(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Different-looking token ids, the same on every machine."""
    return [(seed * 7919 + 104729 * (i + 1) + 31 * i * i) % vocab_size for i in range(count)]


def _run(
    graph: Graph, weights: Mapping[str, torch.Tensor], ids: Sequence[int], positions: Sequence[int], **options: Any
) -> Any:
    inputs = {
        "ids": torch.tensor(list(ids), dtype=torch.int32),
        "positions": torch.tensor(list(positions), dtype=torch.int32),
    }
    if "lengths" in graph.input_names:
        inputs["lengths"] = torch.full((len(ids),), len(ids), dtype=torch.int32)
    with torch.no_grad():
        return interpret(graph, inputs, weights, **options)["logits"]


def _equality(
    graph: Graph, weights: Mapping[str, torch.Tensor], eager: Eager, vocab: int, dtype: DType, lengths: Sequence[int]
) -> dict[int, float]:
    errors = {}
    for n in lengths:
        ids, positions = tokens(n, vocab, n), list(range(n))
        want, got = eager(ids, positions), _run(graph, weights, ids, positions)
        if not bool(want.isfinite().all()):
            warnings.warn("the model's own logits are not finite; its weights are damaged", WeightWarning, stacklevel=4)
            return {}
        scale = float(want.double().pow(2).mean().sqrt())
        errors[n] = float((got.double() - want.double()).pow(2).mean().sqrt()) / (scale or 1.0)
        if not errors[n] <= TOLERANCE[dtype]:
            raise UntraceableError(
                f"the captured graph differs from the model's own code at {n} tokens: relative error {errors[n]:.2g}, "
                f"accepted {TOLERANCE[dtype]:.2g} in {dtype.value}"
            )
    return errors


def with_local_attention(graph: Graph) -> Graph:
    """`graph` with every attention replaced by a token-local function: v + mean(q) + mean(k), heads repeated."""

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        if node.op != "attn.attention":
            return None
        q, k, v = operands
        b = Builder(node.loc)
        rows, heads, _ = q.type.shape
        kv_heads, size = v.type.shape[1:]
        group = int(heads) // int(kv_heads)

        def spread(x: Value) -> Value:
            width = x.type.shape[2]
            wide = b.op("tensor.view", x, shape=(rows, kv_heads, 1, width))
            wide = b.op("tensor.expand", wide, shape=(rows, kv_heads, group, width))
            return b.op("tensor.view", wide, shape=(rows, heads, width))

        query = b.op("tensor.mean", q, dims=(-1,), keepdim=True)
        key = b.op("tensor.mean", spread(k), dims=(-1,), keepdim=True)
        both = b.op("tensor.expand", b.op("tensor.add", query, key), shape=(rows, heads, size))
        return b.op("tensor.add", spread(v), both)

    return transform(graph, visit)


def _locality(graph: Graph, weights: Mapping[str, torch.Tensor], vocab: int, count: int = 9) -> None:
    """Compare all values of two runs that differ in one token; the first that differs elsewhere names the module."""
    changed = count // 2
    ids = tokens(count, vocab)
    other = list(ids)
    other[changed] = (ids[changed] + vocab // 2) % vocab
    first: list[tuple[Node, tuple[Any, ...]]] = []
    _run(graph, weights, ids, range(count), observe=lambda node, out: first.append((node, out)))
    leak: list[Node] = []
    index = iter(first)

    def compare(node: Node, out: tuple[Any, ...]) -> None:
        _, before = next(index)
        if leak:
            return
        for value, a, b in zip(node.results, before, out, strict=True):
            if isinstance(a, torch.Tensor) and _leaks(value, a, b, changed):
                leak.append(node)

    _run(graph, weights, other, range(count), observe=compare)
    if leak:
        node = leak[0]
        raise UntraceableError(
            f"module {node.loc.module!r} mixes tokens outside attention ({node.loc.source or node.op}): changing one "
            "token changes the rows of others, so such a model cannot serve several sequences in one step"
        )


def _leaks(value: Value, a: torch.Tensor, b: torch.Tensor, changed: int) -> bool:
    """Whether two evaluations of a value differ outside the row of the changed token."""
    axes = [i for i, dim in enumerate(value.type.shape) if dim == T]
    if len(axes) == 1:
        others = torch.tensor([i for i in range(a.shape[axes[0]]) if i != changed])
        a, b = a.index_select(axes[0], others), b.index_select(axes[0], others)
    if a.is_floating_point():
        a, b = a.nan_to_num(), b.nan_to_num()
    return not torch.equal(a, b)


def _positions(graph: Graph, weights: Mapping[str, torch.Tensor], vocab: int, limit: int, count: int = 9) -> None:
    shift = 7 if not limit else min(7, limit - count)
    if shift <= 0:
        return
    ids = tokens(count, vocab)
    cut = count // 2
    moved = [i + (shift if i >= cut else 0) for i in range(count)]
    a, b = (_run(graph, weights, ids, p) for p in (range(count), moved))
    still = [i for i in range(cut, count) if torch.equal(a[i], b[i])]
    if len(still) == count - cut:
        raise UntraceableError(
            "the model's result does not depend on position_ids: it derives positions from the step itself or has "
            "none, so it cannot be served in packed steps"
        )
