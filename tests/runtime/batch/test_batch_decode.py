"""Decode steps after the first move the last step's inputs on instead of preparing them anew; both must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from engine_requests import add_request

from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.sampling_params import SamplingParams

PARAMS = (
    SamplingParams(max_tokens=30, temperature=0.0, seed=1, ignore_eos=True),
    SamplingParams(max_tokens=14, temperature=0.8, seed=3, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=22, temperature=1.0, seed=4, top_k=5, ignore_eos=True),
)


def served(engine: Engine, *, fresh: bool, extra: SamplingParams | None = None) -> tuple[list[Any], list[Any], int]:
    """Outputs of requests that join and leave, the inputs of all steps, and how many steps were moved on."""
    executor: Any = engine.executor
    run, seen, moved = executor.wait, [], 0
    advance = engine.batch._advance

    def counted(last: Any) -> Any:
        nonlocal moved
        moved += 1
        return advance(last)

    def observe(step: Any) -> Any:
        descriptor, counts = step
        sizes = {"ids": counts.tokens, "positions": counts.tokens}
        names = (*sizes, "rows", "temperature", "seed", "counter", "masked", "edit_count", "top_k", "top_p")
        tables = {}
        for group in engine.kv.groups:
            tables |= {group.slots: counts.tokens, group.block_tables: counts.seqs, group.items: counts.items}
        inputs = {n: executor.inputs[n][: sizes.get(n, counts.rows)].copy() for n in names}
        seen.append((descriptor, counts, inputs | {n: executor.inputs[n][:c].copy() for n, c in tables.items()}))
        return run(step)

    executor.wait = observe
    engine.batch._advance = counted  # type: ignore[method-assign]
    requests = [add_request(engine, list(range(1, 4 + 3 * i)), p) for i, p in enumerate(PARAMS)]
    while engine.has_unfinished:
        if fresh:
            engine.batch._last = None
        engine.step()
        if len(seen) == 9:
            requests.append(add_request(engine, [5, 6], extra or PARAMS[0]))
    return [r.outputs for r in requests], seen, moved


def same(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    for (descriptor, counts, inputs), (other, other_counts, other_inputs) in zip(a, b, strict=True):
        assert (descriptor, counts) == (other, other_counts)
        for name, array in inputs.items():
            np.testing.assert_array_equal(array, other_inputs[name], err_msg=name)


def test_inputs_that_move_on_are_those_prepared_anew(make_engine: Callable[..., Engine]) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "max_seqs": 4, "windows": (0, 6)}
    outputs, seen, moved = served(make_engine(**options), fresh=False)
    again, expected, none = served(make_engine(**options), fresh=True)
    assert moved > 15
    assert none == 0
    assert outputs == again
    same(seen, expected)


def test_requests_with_rules_of_their_own_are_prepared_anew(make_engine: Callable[..., Engine]) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "max_seqs": 4, "windows": (0, 6)}
    rules = SamplingParams(max_tokens=40, temperature=0.0, repetition_penalty=1.5, seed=2, ignore_eos=True)
    outputs, seen, moved = served(make_engine(**options), fresh=False, extra=rules)
    again, expected, _ = served(make_engine(**options), fresh=True, extra=rules)
    assert 0 < moved < 10  # only before that request came
    assert outputs == again
    same(seen, expected)


def test_preempted_requests_come_back_through_a_fresh_preparation(make_engine: Callable[..., Engine]) -> None:
    options = {"max_tokens": 16, "max_seqs": 4, "num_blocks": 16}
    small = make_engine(**options)
    outputs, _, moved = served(small, fresh=False)
    assert small.stats().preemptions > 0
    assert moved > 0
    assert outputs == served(make_engine(max_tokens=16, max_seqs=4), fresh=False)[0]
