"""Log-probabilities as the two routes write them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.runtime.text.tokenizer import Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON has no number for


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """What a token adds to the text; of one that ends inside a character, its bytes where they are known."""
    table = tokenizer.bytes
    return table[token] if table is not None else tokenizer.decode([token], skip_special_tokens=False).encode()


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """A token's text, or for one that is not whole characters its bytes, so that no two look the same."""
    raw = token_bytes(tokenizer, token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


def chat_logprobs(tokenizer: Tokenizer, given: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The field `logprobs` of a chat's choice."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(tokenizer, token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}

    content = [
        {**entry(g.token, g.logprob), "top_logprobs": [entry(token, value) for token, value in g.top]} for g in given
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Makes the field `logprobs` of one completion, all at once or token by token.

    The tokens' texts join to the text: one that ends inside a character is empty, and the one that completes the
    character has it whole. Special tokens are shown, but where they are skipped no offset counts them.
    """

    def __init__(self, tokenizer: Tokenizer, offset: int, *, skip_special: bool) -> None:
        """`offset`: characters before the first token."""
        self._tokenizer = tokenizer
        self._offset = offset
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def echoed(self, prompt: Sequence[int], scores: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The field for the tokens of an echoed prompt; the first has no log-probability."""
        self._offset = 0
        first = self.next([TokenLogprobs(prompt[0], 0.0, 0, ())])
        first["token_logprobs"], first["top_logprobs"] = [None], [None]
        return joined(first, self.next([s for s in scores if s is not None], final=True))

    def next(self, given: Sequence[TokenLogprobs], *, final: bool = False) -> dict[str, Any]:
        """The field for the next tokens; `final`: no more will come."""
        out: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for i, g in enumerate(given, 1):
            text = self._text(g.token, final=final and i == len(given))
            out["text_offset"].append(self._offset)
            out["token_logprobs"].append(max(g.logprob, LOWEST))
            out["tokens"].append(text)
            top = {token_name(self._tokenizer, t): max(value, LOWEST) for t, value in g.top if t != g.token}
            out["top_logprobs"].append({**top, text: max(g.logprob, LOWEST)})
            self._offset += 0 if g.token in self._skipped else len(text)
        return out

    def _text(self, token: int, *, final: bool) -> str:
        raw = token_bytes(self._tokenizer, token)
        return raw.decode() if token in self._skipped else self._utf8.decode(raw, final)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: first[name] + second[name] for name in first}


def prompt_logprobs(tokenizer: Tokenizer, scores: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
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
                    "decoded_token": token_bytes(tokenizer, token).decode("utf-8", "replace"),
                }
                for token, (value, rank) in ranked.items()
            }
        )
    return out
