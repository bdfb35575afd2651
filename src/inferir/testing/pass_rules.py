"""One graph in front of a pass, and everything that must be true of what the pass makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from inferir.ir.errors import IRError, PassError, VerifyError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.verifier import verify
from inferir.passes.context import Pass, PassContext, PassOptions
from inferir.passes.plugin_passes import AddedPass
from inferir.passes.properties import CHECKS
from inferir.testing.compare import compare, distance
from inferir.testing.failures import CheckFailedError, failed
from inferir.testing.stage import Stage, copy_of, make
from inferir.testing.steps import Outcome, run_graph
from inferir.testing.tensors import random_weight, with_transforms

if TYPE_CHECKING:
    import torch

TOLERANCE = {DType.F32: 1e-5, DType.BF16: 2.0**-6}
"""Of an element, relative to itself or to the largest number on the way to it: sums in another order, and in half
precision a rounding more or less."""
HALF = (DType.BF16, DType.F16)
ROW_TOLERANCE = {DType.F32: 1e-5, DType.BF16: 0.05}
"""Of the norm of a token's logits of a whole model."""


@dataclass(frozen=True)
class Rules:
    """A pass, and how its results are compared."""

    step: Pass | AddedPass
    options: PassOptions
    exact: bool
    seed: int

    @property
    def name(self) -> str:
        return make(self.step, self.options, PassContext()).name


def check_at(rules: Rules, at: Stage, random: bool = False) -> tuple[bool, float, Graph]:
    """Check the pass on one graph: whether it changes it, the largest difference of results, and what it makes of it.

    random: the graph is no whole model; elements are compared with what they are computed from, and the pass may refuse
    it with `PassError`. Raises `CheckFailedError`.
    """
    context = copy_of(at.context)
    step = make(rules.step, rules.options, context)
    for name in sorted(step.requires):
        if (found := CHECKS[name](at.graph)) is not None:
            if random:
                raise PassError(f"{rules.name} requires a graph that is {name}, but {found}")
            raise _failure(rules, f"requires a graph that is {name}, but {found}", at.graph)
    text = structural_text(at.graph)
    after = _run(rules, step, at.graph, random)
    if structural_text(at.graph) != text:
        raise _failure(rules, "changed the graph that it was given, in place", at.graph)
    _check_form(rules, step, at.graph, after, random)
    _check_again(rules, at, after, context, random)
    if after is at.graph:
        return False, 0.0, after
    return structural_text(after) != text, _check_numbers(rules, at, after, context, random), after


def _run(rules: Rules, step: Pass, graph: Graph, random: bool) -> Graph:
    try:
        after: object = step.run(graph)
    except PassError as error:
        if random:
            raise
        raise _failure(rules, f"refuses a graph that it must handle: {error}", graph) from None
    except Exception as error:
        raise _failure(rules, f"raised {type(error).__name__}: {error}", graph) from error
    if not isinstance(after, Graph):
        raise _failure(rules, f"returned {type(after).__name__}, not a graph", graph)
    return after


def _check_form(rules: Rules, step: Pass, before: Graph, after: Graph, random: bool) -> None:
    try:
        verify(after)
    except VerifyError as error:
        raise _failure(rules, f"left a broken graph: {error}", before, after) from None
    missing = [name for name in before.output_names if name not in after.output_names]
    if missing:
        raise _failure(rules, f"lost the output {missing[0]!r}", before, after)
    for name in sorted(step.ensures):
        if (found := CHECKS[name](after)) is not None:
            raise _failure(rules, f"promised a graph that is {name}, but {found}", before, after)
    if not random:
        return
    try:
        read = structural_text(parse_graph(print_graph(after)))
    except IRError as error:
        raise _failure(rules, f"left a graph whose text cannot be read: {error}", before, after) from None
    if read != structural_text(after):
        raise _failure(rules, "left a graph whose text says something else", before, after)


def _check_again(rules: Rules, at: Stage, after: Graph, context: PassContext, random: bool) -> None:
    """The same graph gives the same text, and the result is left as it is."""
    twin = copy_of(at.context)
    again = _run(rules, make(rules.step, rules.options, twin), parse_graph(print_graph(at.graph)), random)
    if structural_text(again) != structural_text(after):
        raise _failure(rules, "makes another graph of the same text the second time", at.graph, after, again)
    if {n: structural_text(g) for n, g in twin.transforms.items()} != {
        n: structural_text(g) for n, g in context.transforms.items()
    }:
        raise _failure(rules, "makes other weight transforms of the same text the second time", at.graph, after)
    step = make(rules.step, rules.options, copy_of(context))
    if not step.idempotent:
        return
    twice = _run(rules, step, after, random)
    if structural_text(twice) != structural_text(after):
        raise _failure(rules, "changes its own result when it runs again", at.graph, after, twice)


def _check_numbers(rules: Rules, at: Stage, after: Graph, context: PassContext, random: bool) -> float:
    block_size = rules.options.limits.block_size
    want = _outcome(at.graph, tuple(at.context.transforms.items()), block_size, rules.seed)
    got = _outcome(after, tuple(context.transforms.items()), block_size, rules.seed)
    half = _has_half(at.graph)
    kind = DType.BF16 if half else DType.F32
    largest = 0.0
    pairs = [
        ((name, f"sequence {s}, token {p}"), got.rows.get((name, s, p)), w) for (name, s, p), w in want.rows.items()
    ]
    pairs += [((name, "the cache"), got.caches.get(name), w) for name, w in want.caches.items()]
    if not any(tensor is not None for _, tensor, _ in pairs):
        raise _failure(rules, "left no result to compare", at.graph, after)
    for (name, place), tensor, wanted in pairs:
        if tensor is None:
            continue
        if not wanted.dtype.is_floating_point:
            _check_tokens(rules, at.graph, after, got, (name, place))
            continue
        tensor = tensor.reshape(wanted.shape)
        off = distance(tensor, wanted)
        largest = max(largest, off)
        exact = rules.exact and not half
        found = compare(tensor, wanted, 0.0 if exact else TOLERANCE[kind], want.largest)
        if found is not None and (random or exact or off > ROW_TOLERANCE[kind]):
            where = [("where", f"{name}, {place}: {found}")]
            raise _failure(rules, "changes what the graph computes", at.graph, after, values=where)
    return largest


def _has_half(graph: Graph) -> bool:
    """Whether there are numbers in half precision, in bodies of regions, too."""
    bodies = (a for n in graph.nodes for a in n.attrs.values() if isinstance(a, Graph))
    return any(t.dtype in HALF for n in graph.nodes for t in n.types) or any(map(_has_half, bodies))


def _check_tokens(rules: Rules, before: Graph, after: Graph, got: Outcome, at: tuple[str, str]) -> None:
    """A token that is drawn without temperature has the largest logit, or one that half precision cannot tell."""
    name, place = at
    for (output, sequence, position), token in got.rows.items():
        logits = got.rows.get(("logits", sequence, position))
        if output != name or logits is None or token.dim():
            continue
        if not -1 <= int(token) < len(logits):
            raise _failure(rules, f"{name}, {place}: there is no token {int(token)}", before, after)
        best, own = float(logits.max()), float(logits[int(token)])
        if best - own > 2.0**-6 * max(1.0, abs(best)):
            raise _failure(rules, f"{name} is not the most likely token: logit {own} beside {best}", before, after)


@lru_cache(maxsize=64)
def _outcome(graph: Graph, transforms: tuple[tuple[str, Graph], ...], block_size: int, seed: int) -> Outcome:
    """What a graph computes with random weights; weights of transforms are computed from the checkpoint's."""
    made = dict(transforms)
    needed: dict[str, torch.Tensor] = {}
    for source in (graph, *made.values()):
        for name, value in source.weights().items():
            if name not in made and name not in needed:
                needed[name] = random_weight(name, value.type, seed)
    return run_graph(graph, with_transforms(needed, made), block_size, seed)


def _failure(
    rules: Rules, problem: str, before: Graph, *after: Graph, values: Sequence[tuple[str, object]] = ()
) -> CheckFailedError:
    parts: list[tuple[str, object]] = [*values, ("before", before)]
    parts += zip(("after", "after the second run"), after, strict=False)
    return failed(f"{rules.name} {problem}", parts, before)
