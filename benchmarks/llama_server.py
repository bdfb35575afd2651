"""llama.cpp's HTTP server as an independent reference: its tokens and log-probabilities."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Weights as in the file, keys and values in f32, one sequence, plain attention.
COMMAND = "llama-server -m {model} --port {port} -c {context} -np 1 -t 2 -fa off -ctk f32 -ctv f32"


class LlamaServer:
    """A server that is up at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text, with the tokens that the model wants at its ends."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return [int(i) for i in self.post("/tokenize", body)["tokens"]]

    def greedy(
        self, ids: Sequence[int], count: int, top: int = 1, banned: Sequence[int] = ()
    ) -> list[dict[int, float]]:
        """For each of `count` greedy tokens: log-probabilities of the `top` most likely, the token itself first.

        banned: ids that are never chosen. Tokens that the server holds for the end of a text never are.
        """
        body = {
            "prompt": list(ids),
            "n_predict": count,
            "temperature": 0,
            "n_probs": top,
            "ignore_eos": True,
            "logit_bias": [[token, False] for token in banned],
            "cache_prompt": False,
            "post_sampling_probs": False,
        }
        steps = self.post("/completion", body)["completion_probabilities"]
        out = []
        for step in steps:
            listed = {int(e["id"]): float(e["logprob"]) for e in step["top_logprobs"]}
            out.append({int(step["id"]): float(step["logprob"]), **listed})
        return out


@contextlib.contextmanager
def serving(model: Path, command: str = COMMAND, context: int = 4096) -> Iterator[LlamaServer]:
    """Start a server for a model with `command`, in which {model}, {port} and {context} are filled in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    filled = [part.format(model=model, port=port, context=context) for part in shlex.split(command)]
    process = subprocess.Popen(filled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = LlamaServer(f"http://127.0.0.1:{port}")
    try:
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def _wait(server: LlamaServer, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the server did not become ready")
