"""Servers with few seats and little memory: preemption, priorities, full queues, clients that leave."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from artifacts import MAX_MODEL_LEN
from serving import SECONDS, Server, Start

BLOCK_BYTES = 16384  # of the tiny artifact in float32: 32 tokens in two layers
LONG = {"prompt": "tell me", "max_tokens": 100, "temperature": 0, "ignore_eos": True}


def counters(server: Server) -> dict[str, float]:
    """Metrics by name, without prefix and labels; those with several labels are added up."""
    out: dict[str, float] = {}
    for line in server.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name = line.split("{")[0].removeprefix("inferir_")
            out[name] = out.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return out


async def request(
    server: Server, body: dict[str, Any], header: str = "x: y"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a completion over a connection of its own."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{header}\r\ncontent-type: application/json"
    writer.write(f"{head}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
    return reader, writer


def memory(blocks: int) -> tuple[str, str]:
    """The option for a pool of so many blocks, beside the null block."""
    return "--kv-cache-memory", str((blocks + 1) * BLOCK_BYTES)


def test_requests_larger_than_the_pool(start: Start) -> None:
    """They are refused or cut at once, and hold nobody up."""
    server = start(*memory(2)).ready()
    refused = server.complete(prompt=[65] * 100)
    assert refused.status_code == 400
    assert "100 tokens" in refused.json()["error"]["message"]
    assert "holds 64 tokens per request" in refused.json()["error"]["message"]
    cut = server.complete(prompt=[65] * 10, max_tokens=2000, ignore_eos=True)
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert cut.json()["usage"]["total_tokens"] == 64
    assert server.complete().status_code == 200


# --- preemption and priorities ----------------------------------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 4},
    {"structured_outputs": {"regex": "[a-d]{100}"}},
    {"logprobs": 2},
    {"structured_outputs": {"regex": "[0-9]{99}x"}, "temperature": 1, "seed": 2, "logprobs": 1},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
]


def streamed(
    server: Server, body: dict[str, Any], begun: threading.Event | None = None
) -> tuple[list[int], str, list[float]]:
    """Token ids, text and log-probabilities, as they came; the stream must end properly. `begun` is set soon."""
    ids: list[int] = []
    text, scores, reasons = "", [], []
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True, "return_token_ids": True}) as got:
        assert got.status_code == 200, got.read()
        data = []
        for line in got.iter_lines():
            if line:
                data.append(line.removeprefix("data: "))
                if begun is not None:
                    begun.set()
    for event in data[:-1]:
        (choice,) = json.loads(event)["choices"]
        ids += choice["token_ids"]
        text += choice["text"]
        scores += choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert data[-1] == "[DONE]"
    assert len(reasons) == 1
    return ids, text, scores


def test_streams_that_run_out_of_room(start: Start) -> None:
    """Six long streams in a pool for two: nothing is lost, repeated or changed, and they make progress."""
    bodies = [{**LONG, "prompt": f"tell {i}", **kind} for i, kind in enumerate(KINDS)]
    server = start(*memory(8)).ready()
    streamed(server, bodies[2])  # starts what compiles grammars
    alone = [streamed(server, b) for b in bodies]
    assert all(len(ids) == 100 for ids, _, _ in alone)
    before = counters(server)["num_preemptions_total"]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        os.kill(server.engine_pid(), signal.SIGSTOP)
        tasks = [pool.submit(streamed, server, b) for b in bodies]
        time.sleep(0.3)
        os.kill(server.engine_pid(), signal.SIGCONT)
        assert [t.result() for t in tasks] == alone
    assert counters(server)["num_preemptions_total"] > before
    server.idle()


def test_high_priorities_go_first(start: Start) -> None:
    server = start("--max-num-seqs", "2", "--scheduling-policy", "priority").ready()
    bodies = [{**LONG, "prompt": f"low {i}", "max_tokens": 120, "priority": 5} for i in range(4)]
    high = {**LONG, "prompt": "high", "max_tokens": 5, "priority": -1}
    alone = [streamed(server, b) for b in [*bodies, high]]

    begun = threading.Event()

    def timed(body: dict[str, Any]) -> tuple[Any, float]:
        return streamed(server, body, begun), time.monotonic()

    engine = server.engine_pid()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        os.kill(engine, signal.SIGSTOP)
        tasks = [pool.submit(timed, b) for b in bodies]
        time.sleep(0.3)
        os.kill(engine, signal.SIGCONT)
        begun.wait(SECONDS)
        os.kill(engine, signal.SIGSTOP)
        tasks.append(pool.submit(timed, high))
        time.sleep(0.3)
        os.kill(engine, signal.SIGCONT)
        results = [t.result() for t in tasks]
    assert [r for r, _ in results] == alone
    assert results[-1][1] < min(end for _, end in results[:-1])


def test_a_full_queue(start: Start) -> None:
    """One runs and ten wait; of two hundred the others are refused at once, and the metrics count them."""
    server = start("--max-num-seqs", "1", "--max-waiting", "10").ready()
    body = {**LONG, "max_tokens": 120}
    expected = server.complete(**body).json()["choices"]

    async def ask() -> tuple[int, str, dict[str, Any]]:
        reader, writer = await request(server, body, "connection: close")
        head, _, text = (await asyncio.wait_for(reader.read(), SECONDS)).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), head, json.loads(text)

    async def all_at_once() -> list[tuple[int, str, dict[str, Any]]]:
        return await asyncio.gather(*(ask() for _ in range(200)))

    answers = asyncio.run(all_at_once())
    refused = [(head, text) for status, head, text in answers if status != 200]
    for head, text in refused:
        assert head.startswith("HTTP/1.1 429 ")
        assert "retry-after: 1" in head
        assert text["error"]["code"] == "queue_full"
    assert len(refused) > 100
    assert all(text["choices"] == expected for status, _, text in answers if status == 200)
    server.idle()
    assert counters(server)["num_requests_refused_total"] == len(refused)


# --- clients that leave -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four seats, four blocks, and prompts of many chunks."""
    log = tmp_path_factory.mktemp("tight") / "log"
    server = Server(tiny_artifact, log, "--max-num-seqs", "4", "--max-num-batched-tokens", "8", *memory(4))
    try:
        yield server.ready()
    finally:
        server.close()


async def leave(server: Server, body: dict[str, Any], seconds: float, chunks: int | None) -> None:
    """Send a request and close the connection after a while, or after some chunks of the answer."""
    reader, writer = await request(server, body)
    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(seconds):
            for _ in range(2 if chunks is None else 2 + chunks):
                await reader.readuntil(b"\n\n" if chunks is not None else b"\x00")
    writer.close()


@pytest.mark.parametrize("rounds", [8])
def test_clients_that_leave_again_and_again(tight: Server, rounds: int) -> None:
    """Streamed or not, running, in the middle of a prompt, or queued: nothing of them remains, and the pool is free."""
    prompt = [60 + i % 30 for i in range(100)]
    whole = {**LONG, "prompt": prompt, "max_tokens": MAX_MODEL_LEN - len(prompt)}
    expected = tight.complete(**whole).json()["choices"]
    random_ = random.Random(0)

    async def one_round() -> None:
        tasks = []
        for i in range(40):
            long = {**LONG, "prompt": prompt if i % 4 == 1 else [65 + i], "max_tokens": 4000, "n": 1 + i % 3}
            chunks = 3 if i % 2 else None
            tasks.append(leave(tight, {**long, "stream": i % 2 == 1}, random_.uniform(0, 0.3), chunks))
        await asyncio.gather(*tasks)

    for _ in range(rounds):
        asyncio.run(one_round())
        tight.idle(5)
    assert tight.complete(**whole).json()["choices"] == expected  # takes every block of the pool
    assert tight.stats()["kv_usage"] == 0


def test_sums_of_usage(tight: Server) -> None:
    """A hundred requests, half of them left: what was answered is counted exactly, and nothing twice."""
    tight.idle()
    before = counters(tight)
    answered: list[dict[str, int]] = []

    async def ask(client: httpx.AsyncClient, i: int) -> None:
        body = {**LONG, "prompt": [65 + i % 50] * (1 + i % 20), "max_tokens": 1 + i % 7}
        answered.append((await client.post("/v1/completions", json=body)).json()["usage"])

    async def run() -> None:
        async with httpx.AsyncClient(base_url=tight.url, timeout=SECONDS) as client:
            left = [leave(tight, {**LONG, "stream": i % 2 == 0}, 0.01 * (i % 25), 2) for i in range(50)]
            await asyncio.gather(*left, *(ask(client, i) for i in range(50)))

    asyncio.run(run())
    tight.idle()
    gained = {k: v - before.get(k, 0) for k, v in counters(tight).items()}
    generated = sum(u["completion_tokens"] for u in answered)
    assert len(answered) == 50
    assert gained["request_generation_tokens_sum"] >= generated
    assert gained["generation_tokens_total"] >= gained["request_generation_tokens_sum"]
    assert gained["prompt_tokens_total"] >= sum(u["prompt_tokens"] for u in answered)
    assert gained["request_success_total"] == 100
    assert gained["request_generation_tokens_count"] == gained["e2e_request_latency_seconds_count"] >= 50


# --- the prefix cache -------------------------------------------------------------------------------------------------


def test_salts_divide_the_prefix_cache(server: Server) -> None:
    prompt = [34 + i % 60 for i in range(100)]
    found = []
    for salt in ("s1", "s1", "s2", None, None, "s1"):
        before = counters(server)["prefix_cache_hits_total"]
        answer = server.complete(prompt=prompt, cache_salt=salt)
        assert answer.status_code == 200
        server.idle()
        found.append(counters(server)["prefix_cache_hits_total"] - before)
    assert found == [0, 96, 0, 0, 96, 96]
    for bad in ("", "x" * 10**6):
        answer = server.complete(prompt=prompt, cache_salt=bad)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "cache_salt"
