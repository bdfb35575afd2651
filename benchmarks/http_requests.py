"""Mixed requests for the soak test over HTTP, and what an answer to one of them is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = "the a model engine answers asks what why is of two river under blue light 7 42 tell me about"
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["a", "bb", 3]}, "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 5}}},
)
BAD: tuple[tuple[str, Any, int], ...] = (
    (COMPLETIONS, {}, 400),
    (COMPLETIONS, {"prompt": ""}, 400),
    (COMPLETIONS, {"prompt": [10**9]}, 400),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}, 400),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 400),
    (COMPLETIONS, {"prompt": "x", "n": 10**6}, 400),
    (COMPLETIONS, {"prompt": [1] * 10**5}, 400),
    (COMPLETIONS, {"prompt": "x", "suffix": "y"}, 400),
    (COMPLETIONS, {"prompt": "x", "structured_outputs": {"regex": "("}}, 400),
    (COMPLETIONS, {"prompt": "x", "model": "another"}, 404),
    (COMPLETIONS, '{"prompt": "x", "max_tok', 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}, 400),
    ("/v1/nothing", {}, 404),
)


@dataclass(frozen=True)
class Sent:
    """One request. body: an object, or text that is sent as it is. key: which of the different good bodies it is, or
    None for a bad one, which expects `status`. leave_after: seconds or, in streams, events after which the client
    closes its socket."""

    path: str
    body: Any
    key: int | None
    status: int = 200
    leave_after: float | None = None

    @property
    def stream(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))

    @property
    def content(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


def make_requests(
    count: int, seed: int, *, vocab: int, longest: int, most: int, distinct: int
) -> tuple[list[Sent], list[Sent]]:
    """`count` requests in the order in which they are sent, and the different good ones.

    longest, most: tokens of a prompt, without what a chat template adds, and of an answer. About one in ten is bad,
    and one in ten is left.
    """
    rng = random.Random(seed)
    shared = [[rng.randrange(vocab) for _ in range(longest)] for _ in range(3)]
    good = [_good(rng, key, shared, vocab, longest, most) for key in range(distinct)]
    sent = []
    for index in range(count):
        if rng.random() < 0.1:
            path, body, status = rng.choice(BAD)
            sent.append(Sent(path, body, None, status))
            continue
        one = good[index % distinct]
        body = dict(one.body)
        if rng.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        leave = None
        if rng.random() < 0.11:
            leave = float(rng.randint(1, 6)) if "stream" in body else rng.random() * 0.5
        sent.append(Sent(one.path, body, one.key, leave_after=leave))
    rng.shuffle(sent)
    return sent, good


def _good(rng: random.Random, key: int, shared: list[list[int]], vocab: int, longest: int, most: int) -> Sent:
    """A request whose answer is the same every time. Most prompts are short."""
    length = max(1, min(longest, round(longest ** (rng.random() ** 1.8))))
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": rng.randint(1, most),
        "seed": key,
        "return_token_ids": True,
        "temperature": rng.choice((0.0, 0.0, 0.8, 1.2)),
    }
    chat = rng.random() < 0.4
    extras: dict[str, Any] = {
        "ignore_eos": True,
        "stop": ["e", " the"],
        "top_p": 0.8,
        "top_k": 40,
        "frequency_penalty": 0.4,
        "min_tokens": 1,
        "logit_bias": {"5": -3},
        "stop_token_ids": [9],
    }
    body |= {name: value for name, value in extras.items() if rng.random() < 0.15}
    if rng.random() < 0.12:
        body["n"] = 2
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    if rng.random() < 0.12:
        schema = {"name": "s", "schema": rng.choice(SCHEMAS)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif rng.random() < 0.04:
        body["structured_outputs"] = {"regex": "[a-c]{2,9}"}
    if chat:
        body["messages"] = [{"role": "user", "content": _text(rng, length)}]
        return Sent(CHAT, body, key)
    if rng.random() < 0.3:
        body["prompt"] = _text(rng, length)
    elif rng.random() < 0.4:
        own = rng.randint(1, 8)
        body["prompt"] = rng.choice(shared)[: max(0, length - own)] + [rng.randrange(vocab) for _ in range(own)]
    else:
        body["prompt"] = [rng.randrange(vocab) for _ in range(length)]
    return Sent(COMPLETIONS, body, key)


def _text(rng: random.Random, characters: int) -> str:
    """Words in so many characters, which are at most as many tokens."""
    words = WORDS.split(" ")
    return " ".join(rng.choice(words) for _ in range(characters // 2 + 1))[: max(1, characters)]


Answer = list[dict[str, Any]]
"""What of each choice must be the same every time."""


def answer_of(document: dict[str, Any]) -> Answer:
    """The answer in a document that came as a whole."""
    return [
        {
            "text": c["message"]["content"] if "message" in c else c["text"],
            "token_ids": c["token_ids"],
            "finish_reason": c["finish_reason"],
            "stop_reason": c["stop_reason"],
            "logprobs": c["logprobs"],
        }
        for c in document["choices"]
    ]


def answer_of_events(events: Iterable[dict[str, Any]]) -> Answer:
    """The same, put together from the events of a stream."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for c in event["choices"]:
            out = choices.setdefault(
                c["index"], {"text": "", "token_ids": [], "finish_reason": None, "stop_reason": None, "logprobs": None}
            )
            out["text"] += (c["delta"].get("content") or "") if "delta" in c else c["text"]
            out["token_ids"] += c.get("token_ids", [])
            for name in ("finish_reason", "stop_reason"):
                out[name] = c[name] if c[name] is not None else out[name]
            if c["logprobs"] is not None:
                out["logprobs"] = _joined(out["logprobs"], c["logprobs"])
    return [choices[index] for index in sorted(choices)]


def _joined(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    if before is None:
        return dict(after)
    return {name: value if value is None else before[name] + value for name, value in after.items()}
