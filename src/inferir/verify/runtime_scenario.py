"""Requests that make an engine prepare steps of every kind, and what watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from inferir.ir.system.error_report import one_line
from inferir.runtime.engine.engine import Engine
from inferir.runtime.probe import sequence_logits
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.verify.step_check import StepCheck, WrongInput
from inferir.verify.step_record import SubmittedStep, watch_engine

Content = Callable[[StepCheck, SubmittedStep], Iterable[WrongInput]]

ENGINE = "engine"
"""The name of a fault that shows as a failure, not as a wrong input."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """waves: prompts that run together, one wave after the other, so that later ones find beginnings of earlier ones in
    the cache; each gets `new_tokens` tokens. probes: sequences and the tokens of a step, for logits of all positions.
    """

    waves: tuple[tuple[tuple[int, ...], ...], ...]
    new_tokens: int
    probes: tuple[tuple[tuple[tuple[int, ...], ...], int], ...]


def scenario(pool: Sequence[Sequence[int]], block_size: int, capacity: int, most: int, *, probes: bool) -> Scenario:
    """capacity: tokens that a sequence may have; most: sequences at once; probes: whether there is memory for them."""
    new = max(1, min(block_size + 3, capacity // 2))
    room = max(1, capacity - new - 1)
    lengths = [min(room, n) for n in (block_size + 5, 3, block_size - 1, 2 * block_size, 1, block_size)]
    prompts = [tuple(pool[i % len(pool)][:n]) for i, n in enumerate(lengths)]
    longer = tuple([*prompts[0], *pool[-1]][: min(room, block_size + 9)])
    probed = tuple(
        (tuple(p[: min(len(p), room)] for p in map(tuple, pool[:count])), chunk)
        for count, chunk in ((1, 5), (min(2, most), 1))
    )
    return Scenario(waves=(tuple(prompts), (longer, prompts[1])), new_tokens=new, probes=probed if probes else ())


def run_scenario(
    engine: Engine, wanted: Scenario, content: Content | None = None
) -> tuple[StepCheck, list[WrongInput], int]:
    """Run all requests, checking every step: the simulation, what it found wrong first, and the steps that ran.

    content: what else is to be checked of a step whose inputs are right. It stops at the first step with a fault.
    """
    groups = engine.kv.groups
    check = StepCheck(groups, engine.kv.block_size, "lengths" in engine.executor.inputs)
    wrong: list[WrongInput] = []
    steps = [0]
    serving = [False]

    def watch(step: SubmittedStep) -> None:
        steps[0] += 1
        if not wrong:
            wrong.extend(check.check(step, samples=serving[0]))
        if not wrong and content is not None:
            wrong.extend(content(check, step))

    watch_engine(engine, watch)
    try:
        _run(engine, wanted, wrong, serving)
    except Exception as error:  # of an engine that is at fault; what a wrong step leads to is not of interest
        if not wrong:
            text = f"it fails with {type(error).__name__}: {one_line(str(error))}"
            wrong.append(WrongInput(ENGINE, steps[0], (), 0, 0, text))
    return check, wrong, steps[0]


def _run(engine: Engine, wanted: Scenario, wrong: list[WrongInput], serving: list[bool]) -> None:
    most, tokens = engine.scheduler.options.max_seqs, engine.scheduler.options.max_tokens
    for sequences, chunk in wanted.probes:
        if len(sequences) <= min(most, tokens) and not wrong:
            sequence_logits(engine, sequences, min(chunk, tokens // len(sequences)))
    serving[0] = True
    params = SamplingParams(temperature=0.0, max_tokens=wanted.new_tokens, ignore_eos=True)
    for wave in wanted.waves:
        requests = [request for prompt in wave for request in engine.requests.make(prompt, params)]
        engine.queue(requests)
        while engine.has_unfinished and not wrong:
            engine.step()
        for request in requests:
            engine.abort(request.id)
