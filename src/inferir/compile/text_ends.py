"""Joins what the parts of a model say about the end of a text: its files, its tokenizer, and its chat templates."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import msgspec

from inferir.compile.template_probe import probe_templates
from inferir.frontend.facts import ModelFacts
from inferir.frontend.source.end_ids import Claim, join
from inferir.frontend.source.export_tokenizer import TokenizerFacts
from inferir.ir.contract.manifest import Decision


class VocabularyWarning(UserWarning):
    """Tokenizer and model disagree about the vocabulary; the message names tokens and sizes."""


def join_ends(
    facts: ModelFacts, tokenizer: TokenizerFacts, files: Mapping[str, bytes]
) -> tuple[ModelFacts, tuple[Decision, ...]]:
    """`facts` with every id that ends a text, and for each id a decision that says where it comes from.

    files: what the tokenizer's folder of the artifact holds. What a model type has by default counts only if nothing
    of the model itself says anything.
    """
    sources = {d.value: d.source for d in tokenizer.decisions if d.subject == "chat template"}
    claims = list(tokenizer.claims)
    for name, token in probe_templates(files, sources, tokenizer.control).items():
        claims.append(Claim(ids=(tokenizer.added[token],), source=f"{sources[name]}: ends the assistant's turn"))
    if not claims and facts.eos_token_ids:
        claims.append(Claim(ids=facts.eos_token_ids, source=f"default of the model type {facts.model_type}"))
    spelled = {number: token for token, number in tokenizer.added.items()}
    ids, decisions = join(claims, facts.vocab_size, spelled)
    return msgspec.structs.replace(facts, eos_token_ids=ids), decisions


def check_vocabulary(facts: ModelFacts, tokenizer: TokenizerFacts) -> None:
    """Warn of tokens that the model has no embedding for."""
    beyond = tokenizer.size - facts.vocab_size
    if beyond <= 0:
        return
    named = [f"{token!r} ({number})" for token, number in tokenizer.added.items() if number >= facts.vocab_size]
    examples = f", such as {', '.join(named[:3])}" if named else ""
    warnings.warn(
        f"the tokenizer has ids up to {tokenizer.size - 1}, but the model's vocabulary has {facts.vocab_size} tokens; "
        f"a prompt that gives one of those beyond it{examples} is refused",
        VocabularyWarning,
        stacklevel=3,
    )
