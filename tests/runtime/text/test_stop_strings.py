"""Where stop strings end in a text, whatever pieces it comes in, and what is held back meanwhile."""

from __future__ import annotations

import pytest

from inferir.runtime.text.detokenizer import StopMatcher


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        ((), "anything", None),
        (("x",), "abc", None),
        (("END",), "the END is", (7, "END")),
        (("END",), "ENEND", (5, "END")),
        (("aab",), "aaab", (4, "aab")),
        (("abab",), "abaabab", (7, "abab")),
        (("b", "abc"), "abc", (2, "b")),
        (("abc", "bc", "c"), "xabc", (4, "abc")),
        (("\n\n",), "a\n\n\n", (3, "\n\n")),
        (("é😀",), "éé😀", (3, "é😀")),
    ],
)
def test_the_first_that_is_completed(stops: tuple[str, ...], text: str, expected: tuple[int, str] | None) -> None:
    assert StopMatcher(stops).feed(text) == expected
    for cut in range(1, len(text)):
        matcher = StopMatcher(stops)
        found = matcher.feed(text[:cut])
        if found is None and (rest := matcher.feed(text[cut:])) is not None:
            found = (cut + rest[0], rest[1])
        assert found == expected, cut


@pytest.mark.parametrize(
    ("stops", "text", "held"),
    [((), "END", 0), (("END",), "E", 1), (("END",), "EN", 2), (("END",), "ENx", 0), (("aab", "ba"), "aa", 2)],
)
def test_what_is_held_back(stops: tuple[str, ...], text: str, held: int) -> None:
    matcher = StopMatcher(stops)
    assert matcher.feed(text) is None
    assert matcher.held == held
