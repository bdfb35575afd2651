"""SentencePiece vocabularies: merging by score, the leftmost of equal ones first."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from tiny_gguf import NORMAL, Tiny, write
from tokenizers import Tokenizer

from inferir.frontend.gguf.gguf_tokenizer import export
from inferir.ir.errors import FrontendError

FIRST = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc▁")
TYPES = (2, 3, 3, *(6,) * 256, *(NORMAL,) * 4)


def vocabulary(scores: dict[str, float]) -> Tiny:
    """Letters a to c, and these tokens with these scores."""
    return Tiny(
        model="llama",
        tokens=[*FIRST, *scores],
        types=[*TYPES, *[NORMAL] * len(scores)],
        scores=[*[0.0] * len(FIRST), *scores.values()],
        keys={"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False},
    )


def exported(scores: dict[str, float], folder: Path) -> Tokenizer:
    export(write(folder / "tiny.gguf", vocabulary(scores)), folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def by_the_book(text: str, scores: dict[str, float]) -> list[str]:
    """The pair whose text has the highest score merges, and of equal ones the leftmost."""
    pieces = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def same_as_by_the_book(scores: dict[str, float], folder: Path, rng: random.Random) -> bool:
    """False if the vocabulary is refused."""
    try:
        tokenizer = exported(scores, folder)
    except FrontendError as error:
        if "among tokens with equal scores" not in str(error):
            raise
        return False
    for _ in range(20):
        text = "".join(rng.choices("abc", k=rng.randint(1, 14)))
        assert tokenizer.encode(text).tokens == by_the_book(text, scores), (text, scores)
    return True


def test_distinct_scores(tmp_path: Path) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        words = {"".join(rng.choices("abc"[: rng.randint(1, 3)], k=rng.randint(2, 5))) for _ in range(9)}
        words |= {word[:end] for word in words for end in range(2, len(word))}
        scores = {word: -float(i) for i, word in enumerate(sorted(words, key=lambda _: rng.random()))}
        assert same_as_by_the_book(scores, tmp_path, rng)


def test_equal_scores_are_kept_or_refused(tmp_path: Path) -> None:
    kept = 0
    for seed in range(120):
        rng = random.Random(seed)
        words = sorted({"".join(rng.choices("abc", k=rng.randint(2, 3))) for _ in range(rng.randint(2, 6))})
        levels = rng.randint(1, 3)
        kept += same_as_by_the_book({word: -float(rng.randrange(levels)) for word in words}, tmp_path, rng)
    assert 20 <= kept < 120


def test_runs_of_one_character_may_have_equal_scores(tmp_path: Path) -> None:
    """As blanks have in Gemma's vocabulary, spelled with the stand-in: forty of them are 31 and 9."""
    tokenizer = exported({"▁" * n: -1000.0 for n in range(2, 32)}, tmp_path)
    assert [len(token) for token in tokenizer.encode(" " * 40).tokens] == [31, 9]


def test_equal_scores_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"tiny\.gguf: tokenizer\.ggml\.scores: .* the order of 'ab' and 'ba'"):
        exported({"ab": 0.0, "ba": 0.0}, tmp_path)


def test_a_character_that_is_no_token_cannot_merge(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"'aq', is made of 'q', which is no token of its own"):
        exported({"aq": 0.0}, tmp_path)
