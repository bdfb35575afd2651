"""Which token ids end a text: every place that says so, joined. Pure functions over plain data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from inferir.frontend.gguf.gguf_vocabulary import NO_TOKEN
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError

SUBJECT = "end of text"
TOKEN_KEYS = ("eos_token", "eot_token", "eom_token")


class EndIdWarning(UserWarning):
    """A file names an end-of-text id that cannot be used; the message names file, key and id."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one place says: `ids` end a text. source: file and key, for people."""

    ids: tuple[int, ...]
    source: str


def stated(value: Any, source: str) -> tuple[Claim, ...]:
    """The claim of a field that holds an id, a list of ids, or null.

    A negative id means "none", as many files use it. Raises `FrontendError` naming the field for anything else.
    """
    items = value if isinstance(value, list | tuple) else [] if value is None else [value]
    for item in items:
        if type(item) is not int:
            raise FrontendError(f"{source} is {value!r}, not a token id or a list of them")
    ids = tuple(dict.fromkeys(item for item in items if item >= 0))
    return (Claim(ids=ids, source=source),) if ids else ()


def config_claims(generation: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What generation_config.json and config.json of a model folder say, in this order."""
    claims = [*stated(generation.get("eos_token_id"), "generation_config.json: eos_token_id")]
    claims += stated(config.get("eos_token_id"), "config.json: eos_token_id")
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        claims += stated(nested.get("eos_token_id"), "config.json: text_config.eos_token_id")
    return tuple(claims)


def gguf_claims(metadata: Mapping[str, Any], file: str) -> tuple[Claim, ...]:
    """What the metadata of the GGUF file `file` says about the end of a text, a turn and a message, in this order."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    named = ((key, metadata.get(key)) for key in keys)
    return tuple(claim for key, value in named if value not in NO_TOKEN for claim in stated(value, f"{file}: {key}"))


def join(
    claims: Iterable[Claim], vocab_size: int, spelled: Mapping[int, str]
) -> tuple[tuple[int, ...], tuple[Decision, ...]]:
    """Every id that some place claims, in the order of the claims, and for each a decision that lists its sources.

    vocab_size: of the model; ids beyond it are left out with a warning. spelled: tokens by id, as far as known.
    """
    sources: dict[int, list[str]] = {}
    for claim in claims:
        for token in claim.ids:
            if not 0 <= token < vocab_size:
                warnings.warn(
                    f"{claim.source} names the id {token}, but the model's vocabulary has {vocab_size} tokens; it is "
                    "ignored",
                    EndIdWarning,
                    stacklevel=2,
                )
                continue
            known = sources.setdefault(token, [])
            if claim.source not in known:
                known.append(claim.source)
    decisions = tuple(
        Decision(subject=SUBJECT, value=f"{token} {spelled.get(token, '')}".strip(), source="; ".join(found))
        for token, found in sources.items()
    )
    return tuple(sources), decisions
