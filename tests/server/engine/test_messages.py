"""Messages between the two processes: what is written is read."""

from __future__ import annotations

import pytest

from inferir.runtime.recording.recorded_steps import Recording, StepRecord
from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.server.engine import messages as m

SCORE = TokenLogprobs(3, -0.5, 1, ((3, -0.5), (4, -1.0)))


@pytest.mark.parametrize(
    "message",
    [
        m.Add("r", [1, 2], {"n": 2}),
        m.Add("r", [], {}, 3, "salt", ("choice", ["a", "b"], "structured_outputs")),
        m.Abort("r"),
        m.Ping(),
        m.StartProfile(5, 1.5, 1 << 20),
        m.StopProfile(),
        m.Shutdown(),
    ],
)
def test_to_the_engine(message: m.ToEngine) -> None:
    assert m.to_engine.decode(m.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        m.Ready(7, "kv"),
        m.Accepted("r"),
        m.Refused("r", "no", None, busy=True),
        m.Stats(running=1, kv_usage=0.5),
        m.Profile(),
        m.Profile(Recording(1, 9, [StepRecord(2, [("schedule", 3)], stamps=b"1234")], 2, 7, "cut", 4)),
        m.Updates([m.TokenEvent("r", (3,), "x", "stop", "</s>", 0.1, (SCORE,), [None, SCORE])], m.Stats()),
    ],
)
def test_from_the_engine(message: m.FromEngine) -> None:
    assert m.from_engine.decode(m.encode(message)) == message


def test_names_of_answers() -> None:
    assert (m.request_ids("r", 1), m.request_ids("r", 2)) == (["r"], ["r-0", "r-1"])
