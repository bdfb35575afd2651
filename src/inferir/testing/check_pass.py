"""`check_pass`: what every pass must keep to, on models of many families and on small random graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferir.ir.errors import InferirError, PassError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.printer import print_graph
from inferir.passes.context import Pass, PassContext, PassOptions
from inferir.passes.plugin_passes import AddedPass
from inferir.testing import random_graphs
from inferir.testing.failures import CheckFailedError, require_libraries
from inferir.testing.hypothesis_run import smallest_failure
from inferir.testing.model_graphs import FAMILIES, graph_text
from inferir.testing.pass_rules import Rules, check_at
from inferir.testing.shrink_graph import shrink
from inferir.testing.stage import OPTIONS, Stage, ensured_before, make, pass_named, positions_of, stage, stages

Show = Callable[[str, Graph, Graph], None]
"""`show(name of the graph, before, after)`."""


@dataclass
class PassReport:
    """What a check of a pass did. largest: the largest difference of results, relative, and of which graph; changed:
    graphs that the pass changed; refused: random graphs that it, or a pass before it, cannot handle.
    """

    name: str
    graphs: int = 0
    changed: int = 0
    refused: int = 0
    largest: float = 0.0
    where: str = ""
    changed_models: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        tail = f", largest difference {self.largest:.2g} in {self.where}" if self.largest else ", no difference"
        return f"{self.name}: {self.graphs} graphs, {self.changed} changed, {self.refused} refused{tail}"

    def add(self, name: str, changed: bool, difference: float) -> None:
        self.graphs += 1
        self.changed += changed
        if difference > self.largest:
            self.largest, self.where = difference, name


def check_pass(
    step: Pass | AddedPass | str,
    *,
    graphs: Iterable[Graph | str | Path] | None = None,
    families: Sequence[str] | None = None,
    phase: str | None = None,
    options: PassOptions = OPTIONS,
    dtypes: Sequence[DType] = (DType.F32, DType.BF16),
    exact: bool = False,
    examples: int = 40,
    seed: int = 0,
    must_change: bool = True,
    show: bool | Show = False,
) -> PassReport:
    """Run a pass where it runs in the pipeline and check what comes of it.

    After the pass the verifier finds nothing, the properties that it requires hold before and those that it ensures
    after, the graph computes the same as before (by the reference interpreter, on random inputs and weights, with paged
    caches where there are any), a second run changes nothing (unless the pass says `idempotent = False`), and another
    run on the same graph gives the same text. `PassError` is how a pass refuses a random graph; of a model's graph it
    must not refuse any.

    step: a pass, an `AddedPass`, or the name of one in the pipeline. It is checked at each place of the pipeline that
      has a pass of its name; a new one at the end of `phase` (default: the first whose end ensures all it requires).
    graphs: captured graphs to check instead of the models that come with this package: graphs, IR texts, or paths of
      text files or model folders (which are traced). families: which of the package's models (default: all of
      `model_graphs.FAMILIES`).
    exact: float32 results must be the same bits; else they may differ by 1e-5, in half precision by a few roundings.
    examples: how many random graphs per place and type; seed: of all random numbers.
    must_change: a pass that changes none of the graphs fails, for then nothing was checked.
    show: print the text before and after of every graph that changes, or call a function with its name and both.

    Raises `CheckFailedError` with the smallest graph that was found to fail, before and after the pass.
    """
    require_libraries("check_pass")
    step = pass_named(step, options) if isinstance(step, str) else step
    if isinstance(step, AddedPass) and step.level is not None and options.opt_level < step.level:
        options = replace(options, opt_level=step.level)
    places = positions_of(step, phase, options)
    rules = Rules(step, options, exact, seed)
    report = PassReport(rules.name)
    for position in places:
        _check_requirements(rules, position)
        if examples:
            for dtype in dtypes:
                _check_random(rules, position, dtype, examples, report)
        for name, text in _texts(graphs, families, dtypes):
            at = _staged(name, text, position, rules)
            try:
                changed, difference, after = check_at(rules, at)
            except CheckFailedError as error:
                raise _reduced(rules, at, name, error) from None
            report.add(name, changed, difference)
            if changed:
                report.changed_models.append(name)
                if show:
                    (show if callable(show) else _print)(name, at.graph, after)
    if must_change and not report.changed:
        raise CheckFailedError(
            f"{rules.name} changed none of {report.graphs} graphs, so nothing was checked; give graphs= that it changes"
        )
    return report


def _check_requirements(rules: Rules, position: int) -> None:
    made, held = make(rules.step, rules.options, PassContext()), ensured_before(position, rules.options)
    missing = sorted(made.requires - held)
    if missing:
        raise CheckFailedError(f"{rules.name} requires a graph that is {missing[0]}, which no pass before it ensures")


def _check_random(rules: Rules, position: int, dtype: DType, examples: int, report: PassReport) -> None:
    last: list[Stage] = []

    def check(graph: Graph) -> None:
        try:
            at = stage(graph, position, rules.options)
            last[:] = [at]
            changed, difference, _ = check_at(rules, at, random=True)
        except PassError:
            report.refused += 1
            return
        report.add(f"a random graph in {dtype.value}", changed, difference)

    failure = smallest_failure(check, random_graphs.graphs(dtype), examples, rules.seed)
    if failure is not None:
        raise _reduced(rules, last[0], "", failure)


def _texts(
    given: Iterable[Graph | str | Path] | None, families: Sequence[str] | None, dtypes: Sequence[DType]
) -> list[tuple[str, str]]:
    """Names and IR texts of the graphs to check."""
    if given is None:
        return [(f"{f} in {d.value}", graph_text(f, d)) for f in families or FAMILIES for d in dtypes]
    from inferir.testing.given_graphs import named_text

    return [named_text(graph, number) for number, graph in enumerate(given)]


def _staged(name: str, text: str, position: int, rules: Rules) -> Stage:
    try:
        return stages(text, rules.options)[position]
    except InferirError as error:
        raise PassError(f"{name} does not reach {rules.name}: {error}") from None


def _reduced(rules: Rules, at: Stage, name: str, error: CheckFailedError) -> CheckFailedError:
    """The failure of a part of the graph, as small as one is found."""
    kind = _kind(error)

    def same_failure(graph: Graph) -> CheckFailedError | None:
        found = _failure_of(rules, Stage(at.position, graph, at.context))
        return found if found is not None and _kind(found) == kind else None

    found = shrink(at.graph, same_failure)
    best = found or CheckFailedError(str(error).removesuffix(f"\nseed: {rules.seed}"), error.graph)
    seed = f"seed: {rules.seed}"
    if not name:
        return CheckFailedError(f"{best}\n{seed}", best.graph)
    what = "a part of the graph" if found is not None else "the graph"
    return CheckFailedError(f"{best}\nfound in: {what} of {name}\n{seed}", best.graph)


def _kind(error: CheckFailedError) -> str:
    """What went wrong, without where."""
    return str(error).split("\n")[0].split(":")[0]


def _failure_of(rules: Rules, at: Stage) -> CheckFailedError | None:
    try:
        check_at(rules, at, random=True)
    except CheckFailedError as error:
        return error
    except InferirError:
        return None
    return None


def _print(name: str, before: Graph, after: Graph) -> None:
    print(f"{name}, before:\n{print_graph(before)}\n{name}, after:\n{print_graph(after)}")
