"""`inferir chat --url`: a conversation with a server, one of ours and one that follows a script."""

from __future__ import annotations

import http.server
import json
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from serving import Server

from inferir.api.llm import LLM, SamplingParams
from inferir.cli.chat_command import Conversation
from inferir.cli.http_client import Client, HttpError
from inferir.cli.remote_chat import find_model, remote_answer
from inferir.ir.errors import RequestError

Cli = Callable[..., Any]
Fails = Callable[..., str]


class Script:
    """A server of chats: `events` is what it streams, `status` what it answers with. It keeps the bodies it got."""

    def __init__(self, place: tuple[str, int] | str) -> None:
        self.events: list[Any] = []
        self.status = 200
        self.models: int = 200
        self.pause = 0.0
        self.bodies: list[Any] = []
        self.headers: list[Any] = []
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.headers.append(dict(self.headers))
                body = {"data": [{"id": "m"}]} if script.models == 200 else {"error": {"message": "no, no"}}
                self._send(script.models, json.dumps(body))

            def do_POST(self) -> None:
                assert self.path == "/v1/chat/completions"
                script.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                if script.status != 200:
                    self._send(script.status, json.dumps({"error": {"message": "no, no"}}))
                    return
                self._send(200, "")
                for event in script.events:
                    text = event if isinstance(event, str) else json.dumps(event)
                    try:
                        self.wfile.write(f"data: {text}\n\n".encode())
                    except OSError:
                        return
                    time.sleep(script.pause)

            def _send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def address_string(self) -> str:
                return "client"

            def log_message(self, format: str, *args: object) -> None:
                pass

        if isinstance(place, str):

            class Unix(socketserver.ThreadingUnixStreamServer):
                daemon_threads = True

            self.server: Any = Unix(place, Handler)
            self.url = ""
        else:
            self.server = http.server.ThreadingHTTPServer(place, Handler)
            self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def say(self, *pieces: str, finish: str = "stop") -> None:
        chunks = [{"choices": [{"delta": {"content": p}, "finish_reason": None}]} for p in pieces]
        end = {"choices": [{"delta": {}, "finish_reason": finish}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2 * len(pieces)}}
        self.events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, *chunks, end, usage, "[DONE]"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script(("127.0.0.1", 0))
    yield script
    script.close()


def conversation(script: Script) -> Conversation:
    return Conversation(partial(remote_answer, Client(script.url), {"model": "m"}))


def test_a_conversation(cli: Cli, script: Script) -> None:
    script.say("Hel", "lo")
    flags = ("--system", "be brief", "--max-tokens", 9, "--temperature", 0.5, "--seed", 3, "--stats")
    result = cli(
        "chat", "--url", f"{script.url}/v1/", "--api-key", "k", *flags, stdin="hi\nand?\n/reset\nhi\n/exit\nx\n"
    )
    assert (result.status, result.out) == (0, "Hello\nHello\n(forgotten)\nHello\n")
    assert result.err.count("7 prompt tokens, 4 tokens in ") == 3
    assert script.headers[0]["authorization"] == "Bearer k"
    said = [[(m["role"], m["content"]) for m in body["messages"]] for body in script.bodies]
    first = [("system", "be brief"), ("user", "hi")]
    assert said == [first, [*first, ("assistant", "Hello"), ("user", "and?")], first]
    body = script.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == ("m", 9, 0.5, 3)
    assert body["stream"] is True


def test_a_unix_socket(cli: Cli, tmp_path: Path) -> None:
    script = Script(str(tmp_path / "s"))
    try:
        script.say("yes")
        assert cli("chat", "--uds", tmp_path / "s", stdin="hi\n").out == "yes\n"
    finally:
        script.close()


def test_ctrl_c_stops_the_answer_only(script: Script) -> None:
    script.say(*"abcdefghij")
    script.pause = 0.1
    pieces: list[str] = []

    def write(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    talk = conversation(script)
    done = talk.reply("hi", write)
    assert (done.text, done.tokens, done.interrupted) == ("abc", 3, True)
    assert talk.messages[-1] == {"role": "assistant", "content": "abc"}
    assert signal.getsignal(signal.SIGINT) is before
    script.pause = 0.0
    assert talk.reply("go on", pieces.append).text == "abcdefghij"


def test_other_threads_can_talk_too(script: Script) -> None:
    script.say("yes")
    found: list[str] = []
    talk = conversation(script)
    worker = threading.Thread(target=lambda: found.append(talk.reply("hi", lambda text: None).text))
    worker.start()
    worker.join()
    assert found == ["yes"]


def test_what_does_not_fit_leaves_the_conversation(cli: Cli, script: Script) -> None:
    script.status = 400
    result = cli("chat", "--url", script.url, stdin="hi\nhi\n")
    assert (result.status, result.err) == (0, "no, no\n(/reset starts again)\n" * 2)
    talk = conversation(script)
    with pytest.raises(RequestError):
        talk.reply("hi", lambda text: None)
    assert talk.messages == []


def test_errors(fails: Fails, cli: Cli, script: Script) -> None:
    url = ("chat", "--url", script.url)
    script.models = 401
    assert "status 401: no, no; give the server's key with --api-key" in fails(*url)
    script.models = 404
    assert "status 404: no, no; is this a server of the OpenAI API" in fails(*url)
    script.say("yes")
    assert cli(*url, "--model", "named", stdin="hi\n").out == "yes\n"
    assert script.bodies[-1]["model"] == "named"
    script.models = 200
    assert "does not serve 'other'; it serves m" in fails(*url, "--model", "other")
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        free = place.getsockname()[1]
        assert "connection refused" in fails("chat", "--url", f"http://127.0.0.1:{free}")
    assert "is not an address" in fails("chat", "--url", "localhost")
    assert "No such file" in fails("chat", "--uds", "/nowhere/at/all")


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([], "the stream ended without [DONE]"),
        ([{"error": {"message": "engine died"}}], "engine died"),
        ([{"error": "gone"}], "gone"),
        (["{"], "no part of a chat"),
        ([{"choices": [{}]}], "the stream ended without [DONE]"),
        ([{"choices": [5]}], "no part of a chat"),
        ([{"object": "error", "message": "gone", "code": 500}], "gone"),
    ],
)
def test_broken_answers(script: Script, events: list[Any], error: str) -> None:
    script.events = events
    with pytest.raises(HttpError, match=error.replace("[", r"\[")):
        conversation(script).reply("hi", lambda text: None)


def test_a_failure_ends_a_conversation_that_nobody_watches(cli: Cli, script: Script) -> None:
    script.status = 500
    result = cli("chat", "--url", script.url, stdin="hi\nhi\n")
    assert result.status == 1
    assert result.err == f"inferir: error: {script.url}: status 500: no, no\n"


@pytest.mark.parametrize(
    "arguments",
    [(), ("ART", "--url", "http://x"), ("--url", "http://x", "--threads", 1), ("ART", "--model", "m")],
)
def test_an_artifact_or_a_server(cli: Cli, arguments: tuple[object, ...]) -> None:
    assert cli("chat", *arguments).status == 2


def test_our_own_server(cli: Cli, tiny_artifact: Path, tmp_path: Path) -> None:
    server = Server(tiny_artifact, tmp_path / "log", "--api-key", "k")
    try:
        server.ready()
        url = ("chat", "--url", server.url)
        result = cli(*url, "--api-key", "k", "--max-tokens", 8, stdin=f"hello\n{'x' * 200}\n")
        with pytest.raises(HttpError, match="status 401"):
            find_model(Client(server.url, "wrong"), None)
        assert find_model(Client(server.url, "k"), "tiny") == ("tiny", 128)
        with LLM(tiny_artifact, max_num_seqs=1, threads=1) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=8)
            text = llm.chat([{"role": "user", "content": "hello"}], params)[0].text
        assert (result.status, result.out) == (0, f"{text}\n")
        assert "leaves no room for an answer" in result.err
    finally:
        server.close()
