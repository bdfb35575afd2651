"""Log-probabilities as the two routes write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferir.runtime.tokenizer import Tokenizer
from inferir.server.messages import Logprobs

LOWEST = -9999.0  # stands for minus infinity, which JSON has no number for


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """What a token adds to the text; of one that ends inside a character, its bytes where they are known."""
    table = tokenizer.bytes
    return table[token] if table is not None else tokenizer.decode([token], skip_special_tokens=False).encode()


def token_text(tokenizer: Tokenizer, token: int) -> str:
    return token_bytes(tokenizer, token).decode("utf-8", "replace")


def chat_logprobs(tokenizer: Tokenizer, given: Sequence[Logprobs]) -> dict[str, Any]:
    """The field `logprobs` of a chat's choice."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(tokenizer, token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    content = [
        {**entry(g.token, g.logprob), "top_logprobs": [entry(token, value) for token, value in g.top]} for g in given
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, given: Sequence[Logprobs], offset: int) -> dict[str, Any]:
    """The field `logprobs` of a completion's choice; `offset`: characters before the first token."""
    out: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for g in given:
        text = token_text(tokenizer, g.token)
        out["text_offset"].append(offset)
        out["token_logprobs"].append(max(g.logprob, LOWEST))
        out["tokens"].append(text)
        pairs = [*g.top, (g.token, g.logprob)]
        out["top_logprobs"].append({token_text(tokenizer, t): max(value, LOWEST) for t, value in pairs})
        offset += len(text)
    return out


def echoed_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: Sequence[Logprobs | None], given: Sequence[Logprobs]
) -> dict[str, Any]:
    """The same with the prompt's tokens before those of the answer; the first has no log-probability."""
    first = completion_logprobs(tokenizer, [Logprobs(prompt[0], 0.0, 0, [])], 0)
    first["token_logprobs"], first["top_logprobs"] = [None], [None]
    rest = [s for s in scores if s is not None]
    later = completion_logprobs(tokenizer, [*rest, *given], len(first["tokens"][0]))
    return {name: first[name] + later[name] for name in first}


def prompt_logprobs(tokenizer: Tokenizer, scores: Sequence[Logprobs | None]) -> list[dict[str, Any] | None]:
    """The field `prompt_logprobs`: for each prompt token but the first, candidates by id."""
    out: list[dict[str, Any] | None] = []
    for s in scores:
        if s is None:
            out.append(None)
            continue
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(s.top, 1)}
        ranked[s.token] = (s.logprob, s.rank)
        out.append(
            {
                str(token): {
                    "logprob": max(value, LOWEST),
                    "rank": rank,
                    "decoded_token": token_text(tokenizer, token),
                }
                for token, (value, rank) in ranked.items()
            }
        )
    return out
