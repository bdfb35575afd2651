"""What requests get that do not ask: recommendations of the model and the style of tool calls; prompts scored only."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving import Server, Start

from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest
from inferir.server.engine.engine_client import EngineClient
from inferir.server.server_options import ServerOptions
from inferir.server.service import Service

CONFIG = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.5, "max_new_tokens": 7}
PLAIN = {"prompt": "p", "ignore_eos": True, "return_token_ids": True, "seed": 3}
HERMES = "{{ tools }}<tool_call>{{ messages }}"
JSON = '{{ tools }}{"name": "parameters":}{{ messages }}'


def changed(artifact: Path, place: Path, config: dict[str, Any], **model: Any) -> Path:
    """A copy of an artifact with another generation_config.json, and other facts of its model."""
    copy = shutil.copytree(artifact, place / "art")
    (copy / "tokenizer" / "generation_config.json").write_text(json.dumps(config))
    manifest = read_manifest(copy)
    record = msgspec.structs.replace(manifest.model, **model)
    write_manifest(copy, msgspec.structs.replace(manifest, model=record, files=file_records(copy)))
    return copy


@pytest.fixture(scope="module")
def recommending(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tiny_artifact, tmp_path_factory.mktemp("art"), {**CONFIG, "top_p": 7}, tool_style="json")


@pytest.fixture(scope="module")
def advised(recommending: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(recommending, tmp_path_factory.mktemp("advised") / "log")
    try:
        yield server.ready()
    finally:
        server.close()


def ids(server: Server, **body: Any) -> list[int]:
    answer = server.post("/v1/completions", {**PLAIN, **body})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


# --- recommendations --------------------------------------------------------------------------------------------------


def test_recommendations_are_told(advised: Server) -> None:
    told = [line for line in advised.lines() if "generation" in line]
    values = "repetition_penalty 1.5, max_tokens 7, temperature 0.01, top_k 1"
    assert told == [
        "inferir: warning: server: top_p of generation_config.json is ignored: top_p must be from 0 to 1, not 7",
        f"defaults from the model: {values} (--generation-config none leaves them out)",
    ]


def test_recommendations_are_defaults(advised: Server, server: Server) -> None:
    said = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.5, "max_tokens": 7}
    assert ids(advised) == ids(advised, temperature=None, top_k=None, max_tokens=None) == ids(server, **said)
    assert len(ids(advised)) == 7
    talk = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    usage = [s.post("/v1/chat/completions", talk).json()["usage"]["completion_tokens"] for s in (advised, server)]
    assert usage[0] == 7 < usage[1]


@pytest.mark.parametrize("off", [0, -1])
def test_a_request_wins(advised: Server, server: Server, off: int) -> None:
    said = {"temperature": 1, "top_k": off, "repetition_penalty": 1, "max_tokens": 20}
    assert ids(advised, **said) == ids(server, temperature=1, max_tokens=20) != ids(advised, max_tokens=20)
    assert len(ids(advised, **said)) == 20


def test_no_limit_by_any_name(server: Server) -> None:
    """0, -1 and no value at all are the same."""
    drawn = [ids(server, temperature=1, seed=7, max_tokens=12, **k) for k in ({}, {"top_k": 0}, {"top_k": -1})]
    assert drawn[0] == drawn[1] == drawn[2]


def test_no_limit_as_a_recommendation(tiny_artifact: Path, server: Server, start: Start, tmp_path: Path) -> None:
    quiet = start(artifact=changed(tiny_artifact, tmp_path, {"top_k": 0, "do_sample": True})).ready()
    assert not [line for line in quiet.lines() if line.startswith("defaults")]
    given: list[dict[str, Any]] = [{}, {"top_k": 0}, {"top_k": -1}]
    expected = ids(server, seed=7, max_tokens=12)
    assert [ids(quiet, seed=7, max_tokens=12, **g) for g in given] == [expected] * 3


def test_recommendations_can_be_left_out(recommending: Path, server: Server, start: Start) -> None:
    plain = start("--generation-config", "none", artifact=recommending).ready()
    assert not [line for line in plain.lines() if "defaults" in line or "generation_config" in line]
    assert ids(plain) == ids(server)


# --- scoring ----------------------------------------------------------------------------------------------------------


def test_scoring_a_prompt(server: Server) -> None:
    body = {"prompt": "a b c", "echo": True, "logprobs": 1}
    answer = server.complete(**body, max_tokens=0)
    assert answer.status_code == 200, answer.text
    out = answer.json()
    (choice,) = out["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a b c", "length")
    assert out["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    one = server.complete(**body, max_tokens=1).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == list("a b c")
    assert choice["logprobs"] == {k: v[:5] for k, v in one["logprobs"].items()}


def test_scoring_streams_ids_and_several_prompts(server: Server) -> None:
    body = {
        "prompt": ["ab", "c"],
        "echo": True,
        "max_tokens": 0,
        "n": 2,
        "return_token_ids": True,
        "prompt_logprobs": 1,
    }
    out = server.complete(**body).json()
    assert [c["text"] for c in out["choices"]] == ["ab", "ab", "c", "c"]
    assert [c["token_ids"] for c in out["choices"]] == [[]] * 4
    assert [len(c["prompt_logprobs"]) for c in out["choices"]] == [2, 2, 1, 1]
    streamed = {"prompt": "a b", "echo": True, "max_tokens": 0, "logprobs": 0, "stream": True}
    lines = server.complete(**streamed, stream_options={"include_usage": True}).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    (choice,) = [e["choices"][0] for e in events if e["choices"]]
    assert (choice["text"], choice["finish_reason"]) == ("a b", "length")
    assert choice["logprobs"]["tokens"] == list("a b")
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"max_tokens": 0, "echo": True, "temperature": -1}, "temperature"),
        ({"max_tokens": 0, "echo": True, "structured_outputs": {"regex": "a"}}, "max_tokens"),
    ],
)
def test_scoring_that_is_refused(server: Server, body: dict[str, Any], field: str) -> None:
    answer = server.complete(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    if body == {"max_tokens": 0}:
        assert server.talk({"role": "user", "content": "x"}, **body).status_code == 400


def test_no_most_is_the_default(server: Server) -> None:
    assert len(ids(server, max_tokens=None)) == 16


# --- tool calls -------------------------------------------------------------------------------------------------------


@pytest.fixture
def service(tiny_artifact: Path, recommending: Path, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(*, known: bool, **options: Any) -> Service:
        artifact = recommending if known else tiny_artifact
        if "template" in options:
            options["chat_template"] = tmp_path / "template"
            options["chat_template"].write_text(options.pop("template"))
        made.append(Service(ServerOptions(artifact=artifact, **options), EngineClient(artifact, {})))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_style_of_tool_calls(service: Callable[..., Service]) -> None:
    """An option, else the template given as an option, else what the artifact says, else the most usual one."""
    assert service(known=True).tool_style == "json"
    assert service(known=False).tool_style == "hermes"
    assert service(known=True, tool_style="hermes").tool_style == "hermes"
    assert service(known=True, template=HERMES).tool_style == "hermes"
    assert service(known=False, template=JSON).tool_style == "json"
    assert service(known=True, template="{{ messages }}").tool_style == "hermes"


def test_options_have_these_defaults() -> None:
    defaults = {f.name: f.default for f in dataclasses.fields(ServerOptions)}
    assert (defaults["tool_style"], defaults["generation_config"]) == (None, "auto")
