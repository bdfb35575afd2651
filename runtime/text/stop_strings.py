"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations


class StopMatcher:
    """Follows several stop strings through a text, one character at a time (Knuth-Morris-Pratt).

    The first stop string to be *completed* wins, so the result does not depend on how the text is cut into pieces; of
    several that are completed by the same character, the longest. The cost per character does not depend on their
    lengths.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders(s) for s in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> tuple[int, str] | None:
        """Follow `text`. At the first completed stop string: the number of characters read, and that string."""
        for position, char in enumerate(text):
            for which, stop in enumerate(self._stops):
                matched = self._matched[which]
                while matched and stop[matched] != char:
                    matched = self._borders[which][matched - 1]
                if stop[matched] == char:
                    matched += 1
                if matched == len(stop):
                    return position + 1, stop
                self._matched[which] = matched
        return None


def _borders(word: str) -> list[int]:
    """For each prefix of `word`, the length of its longest proper prefix that is also its end."""
    out = [0] * len(word)
    matched = 0
    for i in range(1, len(word)):
        while matched and word[matched] != word[i]:
            matched = out[matched - 1]
        if word[matched] == word[i]:
            matched += 1
        out[i] = matched
    return out
