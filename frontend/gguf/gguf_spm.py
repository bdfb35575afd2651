"""SentencePiece's byte-pair encoding: `tokenizer.ggml.model` "llama". Two neighbours merge if their text is a token; of
all pairs the one with the highest score goes first, and among equal ones the leftmost.

The `tokenizers` library orders pairs by rank. Each way to put a token together gets a rank of its own, by score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any

from inferir.frontend.gguf.gguf_bpe import BYTE_TOKENS, SPACE, model, replace, text_decoder
from inferir.frontend.gguf.gguf_vocabulary import BYTE, SCORES, TOKENS, UNKNOWN, USER_DEFINED, Vocabulary, flag, scores
from inferir.ir.errors import FrontendError

ADD_SPACE = "tokenizer.ggml.add_space_prefix"
REMOVE_SPACES = "tokenizer.ggml.remove_extra_whitespaces"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"

Pair = tuple[str, str]


def spm(stated: Mapping[str, Any], vocabulary: Vocabulary, control: frozenset[int]) -> tuple[dict[str, Any], list[str]]:
    """The parts of tokenizer.json that split, merge and join, and warnings.

    Raises `FrontendError` naming the key that is missing or broken, or what cannot be expressed.
    """
    warnings = []
    if stated.get(CHARSMAP):
        raise FrontendError(f"{CHARSMAP}: a character map is not supported with the tokenizer model 'llama'")
    if flag(stated, REMOVE_SPACES, False):
        warnings.append(f"{REMOVE_SPACES} is true, which the tokenizer model 'llama' never obeys: blanks stay blanks")
    lost = [token for token in BYTE_TOKENS if token not in vocabulary.index]
    unknown = next(iter(vocabulary.of_kind(UNKNOWN)), None)
    if lost and unknown is None:
        raise FrontendError(f"{TOKENS}: the token {lost[0]} is missing, and there is none of type unknown in its place")
    if lost:
        warnings.append(
            f"{TOKENS}: {len(lost)} bytes have no token: characters that need them become the unknown token"
        )
    prefix = flag(stated, ADD_SPACE, True)
    blanks = replace(" ", SPACE)
    prepend = {"type": "Prepend", "prepend": SPACE}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, blanks]} if prefix else blanks,
        "pre_tokenizer": None,
        "decoder": text_decoder(*strip),
        "model": model(
            vocabulary,
            _merges(stated, vocabulary, control),
            byte_fallback=True,
            unknown=vocabulary.tokens[unknown] if lost and unknown is not None else None,
        ),
    }
    return parts, warnings


def _merges(stated: Mapping[str, Any], vocabulary: Vocabulary, control: frozenset[int]) -> list[Pair]:
    """All pairs whose text is a token that merges may make, the most urgent first.

    Control tokens are never made of pieces: a text is no control token. Neither are bytes. Added tokens are cut out
    of the text first, unless they are spelled with the stand-in for a blank, which no text is at that point.
    """
    score = scores(stated, vocabulary.tokens)
    apart = control.union(
        i
        for i in vocabulary.of_kind(BYTE, USER_DEFINED)
        if vocabulary.kinds[i] == BYTE or SPACE not in vocabulary.tokens[i]
    )
    made = {token: i for token, i in vocabulary.index.items() if i not in apart}
    pieces = made.keys() | {character for character in vocabulary.tokens if len(character) == 1}
    by_score: dict[float, dict[str, list[Pair]]] = defaultdict(dict)
    for token, i in made.items():
        pairs = [
            (token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in pieces and token[at:] in pieces
        ]
        if pairs:
            by_score[score[i]][token] = pairs
    _require_characters(made, pieces)
    tied = {token: value for value, group in by_score.items() if len(group) > 1 for token in group}
    _require_monotone(by_score, tied)
    ranked: list[Pair] = []
    for value in sorted(by_score, reverse=True):
        group = by_score[value]
        for token in group if len(group) == 1 else _tied(group):
            ranked += group[token]
    return ranked


def _require_monotone(by_score: Mapping[float, dict[str, list[Pair]]], tied: Mapping[str, float]) -> None:
    """Raise `FrontendError` if a token is made of a tied one and no less urgent: then it matters which of the tied ones
    is made first, not only where two of them want the same piece. Runs of one character may be (see `_tied`).
    """
    if not tied:
        return
    for value, group in by_score.items():
        run = _one_character(group)
        for token, pairs in group.items():
            for part in (part for pair in pairs for part in pair):
                if tied.get(part, value + 1) <= value and not (run and part in group):
                    raise FrontendError(_unordered(part, token))


def _one_character(group: Mapping[str, list[Pair]]) -> bool:
    """Whether these are runs of one character, made of each other and of nothing else."""
    parts = (part for pairs in group.values() for pair in pairs for part in pair)
    return len({*"".join(group)}) == 1 and all(len(part) == 1 or part in group for part in parts)


def _unordered(one: str, other: str) -> str:
    return f"{SCORES}: among tokens with equal scores, the order of {one!r} and {other!r} cannot be kept"


def _require_characters(made: Mapping[str, int], pieces: Set[str]) -> None:
    """Raise `FrontendError` if a character that is no token takes part in a merge: here only tokens merge."""
    known = {piece for piece in pieces if len(piece) == 1}
    if known.issuperset("".join(made)):
        return
    for token, i in made.items():
        for at in range(1, len(token)):
            pair = token[:at], token[at:]
            lost = [part for part in pair if part not in pieces]
            if lost and all(len(part) == 1 for part in lost):
                raise FrontendError(
                    f"{TOKENS}: token {i}, {token!r}, is made of {lost[0]!r}, which is no token of its own"
                )


def _tied(group: dict[str, list[Pair]]) -> Iterable[str]:
    """Tokens of one score in an order that gives what the leftmost pair first would give.

    Where two of them want the same piece, the one that has it as its right part stands to the left and must come
    first. Runs of one character want each other's pieces both ways, but there the longest first is the same as the
    leftmost first. Raises `FrontendError` if no order will do.
    """
    if _one_character(group):
        return sorted(group, key=len, reverse=True)
    starting: dict[str, set[str]] = defaultdict(set)
    for token, pairs in group.items():
        for left, _ in pairs:
            starting[left].add(token)
    behind = {
        token: {other for _, right in pairs for other in starting[right]} - {token} for token, pairs in group.items()
    }
    return _ordered(behind)


def _ordered(behind: dict[str, set[str]]) -> list[str]:
    try:
        return [*TopologicalSorter(behind).static_order()][::-1]
    except CycleError as error:
        raise FrontendError(_unordered(*sorted(set(error.args[1]))[:2])) from None
