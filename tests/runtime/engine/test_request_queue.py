"""The order in which waiting and running requests stand."""

from __future__ import annotations

import pytest

from inferir.runtime.engine.request_queue import RequestQueue
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.sampling_params import SamplingParams


def request(name: str, priority: int, order: int) -> Request:
    params = SamplingParams()
    return Request(id=name, prompt=[1], params=params, max_total=2, seed=0, blocks=(), priority=priority, order=order)


ARRIVED = [("c", 1, 2), ("a", 5, 0), ("d", 1, 3), ("b", 5, 1)]


@pytest.mark.parametrize(("by_priority", "order"), [(False, "abcd"), (True, "cdab")])
def test_order(by_priority: bool, order: str) -> None:
    queue = RequestQueue(by_priority=by_priority)
    for values in ARRIVED:
        queue.add(request(*values))
    assert "".join(queue) == "".join(r.id for r in queue.values()) == order
    assert (queue.first.id, queue.last.id, len(queue)) == (order[0], order[-1], 4)
    taken = queue.pop(order[1])
    assert taken is not None
    assert queue.get(order[1]) is None
    assert "".join(queue) == order[0] + order[2:]
    queue.add(taken)  # back to its place
    assert "".join(queue) == order


def test_what_is_not_there_and_copies() -> None:
    queue = RequestQueue(by_priority=True)
    assert not queue
    assert queue.pop("a") is queue.get("a") is None
    queue.add(request("a", 0, 0))
    for r in queue.values():
        queue.pop(r.id)  # the list is a copy
    assert not queue
