"""The engine process and its client, without any HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.errors import InferirError
from inferir.server.engine import engine_client
from inferir.server.engine.engine_client import EngineClient, Job, refused
from inferir.server.engine.messages import Add, Refused, TokenEvent
from inferir.server.http.http_errors import ApiError

OPTIONS = {"threads": 1, "kv_cache_memory": "4MiB"}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        await asyncio.sleep(0.02)


def with_client(artifact: Path, body: Callable[[EngineClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = EngineClient(artifact, OPTIONS)
        client.start()
        try:
            await until(lambda: client.phase != "loading")
            return await body(client)
        finally:
            await client.stop()

    return asyncio.run(run())


async def collect(client: EngineClient, prompt: list[int], **params: Any) -> list[TokenEvent]:
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    await client.add(Add("", prompt, {**GREEDY, **params}), 0, inbox)
    events: list[TokenEvent] = []
    while not events or events[-1].finish_reason is None:
        _, event = await asyncio.wait_for(inbox.get(), 20)
        if isinstance(event, ApiError):
            raise event
        events.append(event)
    return events


def test_answers_equal_those_in_process(tiny_artifact: Path) -> None:
    from inferir.api.llm import LLM, SamplingParams

    async def body(client: EngineClient) -> list[list[TokenEvent]]:
        return await asyncio.gather(*(collect(client, [1, 2, 3 + i], max_tokens=9) for i in range(3)))

    events = with_client(tiny_artifact, body)
    with LLM(tiny_artifact, threads=1) as llm:
        params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
        expected = llm.generate([[1, 2, 3 + i] for i in range(3)], params)
    for got, want in zip(events, expected, strict=True):
        assert [t for e in got for t in e.tokens] == want.token_ids
        assert "".join(e.text for e in got) == want.text
        assert got[-1].finish_reason == "length"
        assert got[0].queued is not None
        assert got[0].queued >= 0
        assert got[1].queued is None


def test_refusals_name_the_field(tiny_artifact: Path) -> None:
    async def body(client: EngineClient) -> list[ApiError]:
        out = []
        for prompt, params in ([], {}), ([9999], {}), ([1], {"allowed_token_ids": [10**6]}):
            with pytest.raises(ApiError) as e:
                await collect(client, prompt, **params)
            out.append(e.value)
        assert client.unfinished == 0
        return out

    errors = with_client(tiny_artifact, body)
    assert [(e.status, e.param) for e in errors] == [(400, "prompt"), (400, "prompt"), (400, "allowed_token_ids")]


def test_abort_frees_everything(tiny_artifact: Path) -> None:
    async def body(client: EngineClient) -> None:
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        jobs = await client.add(Add("", [1, 2], {**GREEDY, "max_tokens": None, "n": 1}), 0, inbox)
        for i in range(1, 12):
            jobs += await client.add(Add("", [1, 2], {**GREEDY, "max_tokens": None}), i, inbox)
        await inbox.get()
        for job in jobs:
            await client.abort(job)
        await until(lambda: client.stats.running == client.stats.waiting == 0 and client.stats.kv_usage == 0, 5)
        assert client.unfinished == 0

    with_client(tiny_artifact, body)


def test_a_killed_engine_is_restarted(tiny_artifact: Path) -> None:
    async def body(client: EngineClient) -> None:
        before = await collect(client, [5, 6], max_tokens=5)
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # so that the request is surely unfinished
        adding = asyncio.create_task(client.add(Add("", [1, 2], dict(GREEDY)), 0, inbox))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ApiError) as e:
            await asyncio.wait_for(adding, 10)
        assert e.value.status == 503
        await until(lambda: client.phase == "ready")
        assert client.pid != pid
        assert [x.tokens for x in await collect(client, [5, 6], max_tokens=5)] == [x.tokens for x in before]

    with_client(tiny_artifact, body)


def test_an_engine_that_says_nothing(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "SILENT_SECONDS", 2.5)

    async def body(client: EngineClient) -> None:
        assert client.responsive
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        await until(lambda: not client.responsive, 10)
        os.kill(client.pid, signal.SIGCONT)
        await until(lambda: client.responsive, 10)

    with_client(tiny_artifact, body)


def test_an_artifact_that_cannot_be_loaded(tmp_path: Path) -> None:
    async def body(client: EngineClient) -> InferirError:
        return await asyncio.wait_for(client.wait_failed(), 10)

    assert "manifest.json: not found" in str(with_client(tmp_path, body))


def test_the_engine_dies_with_its_parent(tiny_artifact: Path) -> None:
    program = f"""
import asyncio, pathlib
from inferir.server.engine.engine_client import EngineClient, refused
async def main():
    client = EngineClient(pathlib.Path({str(tiny_artifact)!r}), {OPTIONS!r})
    client.start()
    while client.phase != "ready":
        await asyncio.sleep(0.02)
    print(client.pid, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < end, "the engine process outlived its parent"
        time.sleep(0.05)


@pytest.mark.parametrize(("internal", "status"), [(True, 500), (False, 400)])
def test_a_failure_here_is_not_blamed_on_a_constrained_request(internal: bool, status: int) -> None:
    client = EngineClient.__new__(EngineClient)
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    client.observer, client._jobs = None, {"r": Job("r", 0, inbox, 1, constrained=True)}
    client._deliver(TokenEvent("r", (), "", "error", error="because", internal=internal))
    index, error = inbox.get_nowait()
    assert (index, error.status, error.message) == (0, status, "because")
    assert refused(Refused("r", "because", None, internal=internal)).status == status
