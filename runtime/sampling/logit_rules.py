"""What a request does to its logits besides temperature and filters: biases, bans, penalties, and a set of allowed ids.

`LogitRules` is what a request's parameters mean for a vocabulary; it is made once and refuses what cannot work.
`RowEdits` follows one running request: its edits for the next step, kept up to date token by token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.step_inputs import mask_words
from inferir.ir.errors import RequestError
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.text.tokenizer import Tokenizer

Array = npt.NDArray[Any]
BAN = -np.inf
_BANNED = (BAN, 1.0, 0.0)  # bias, multiplier, offset of an id that must not be drawn


@dataclass(frozen=True, eq=False)
class LogitRules:
    """bias: numbers added to logits, -inf for banned ids. allowed: a bitmask (i32 words) of the ids that may be drawn,
    None for all. endings: ids banned before `min_tokens` tokens. phrases: (beginning, last id): the last id is banned
    after the beginning, which is not empty. repetition, presence, frequency: penalties.
    """

    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: npt.NDArray[np.int32] | None = None
    endings: tuple[int, ...] = ()
    min_tokens: int = 0
    phrases: tuple[tuple[tuple[int, ...], int], ...] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def penalises(self) -> bool:
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def edits(self) -> bool:
        """Whether it edits logits, besides what `allowed` leaves out."""
        return bool(self.bias or (self.endings and self.min_tokens) or self.phrases or self.penalises)


def compile_rules(
    params: SamplingParams, vocab_size: int, eos_token_ids: Collection[int], tokenizer: Tokenizer | None
) -> LogitRules | None:
    """The rules of `params`, or None if there are none.

    Raises `RequestError` naming the field for an id outside the vocabulary, for bad words without a tokenizer, and if
    no token at all could be drawn.
    """
    for name, ids in (("logit_bias", params.bias), ("allowed_token_ids", params.allowed_token_ids or ())):
        for token in ids:
            if token >= vocab_size:
                raise RequestError(f"{name}: token id {token} is outside the vocabulary of {vocab_size}", name)
    words = _bad_words(params, vocab_size, tokenizer)
    bias = {**params.bias, **{word[0]: BAN for word in words if len(word) == 1}}
    endings = set(params.stop_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    rules = LogitRules(
        bias=bias,
        allowed=None if params.allowed_token_ids is None else _mask(params.allowed_token_ids, vocab_size),
        endings=tuple(sorted(t for t in endings if t < vocab_size)) if params.min_tokens else (),
        min_tokens=params.min_tokens,
        phrases=tuple((word[:-1], word[-1]) for word in words if len(word) > 1),
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    banned = {token for token, value in bias.items() if value == BAN}
    if banned and not _some_left(params, vocab_size, banned):
        raise RequestError("bad_words and allowed_token_ids leave no token to draw", "bad_words")
    if rules.endings and not _some_left(params, vocab_size, banned | set(rules.endings)):
        raise RequestError(f"min_tokens={params.min_tokens}: only tokens that end the text are allowed", "min_tokens")
    return rules if rules.edits or rules.allowed is not None else None


def _some_left(params: SamplingParams, vocab_size: int, banned: set[int]) -> bool:
    """Whether a token may be drawn while `banned` ids may not."""
    if params.allowed_token_ids is None:
        return len(banned) < vocab_size
    return not banned.issuperset(params.allowed_token_ids)


def _bad_words(params: SamplingParams, vocab_size: int, tokenizer: Tokenizer | None) -> list[tuple[int, ...]]:
    """Token sequences of bad words, as they are at the start of a text and after a space."""
    if not params.bad_words:
        return []
    if tokenizer is None:
        raise RequestError("bad_words need a tokenizer, and this engine has none", "bad_words")
    found: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        for text in (word, " " + word.lstrip(" ")):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if ids and max(ids) < vocab_size:
                found[ids] = None
    return list(found)


def _mask(ids: Iterable[int], vocab_size: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(mask_words(vocab_size) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class RowEdits:
    """The edits of one running request.

    An id has one entry for its bias and penalties; bans that hold for one step stand behind them.
    """

    def __init__(self, rules: LogitRules, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        self._rules = rules
        self._index: dict[int, int] = {}  # entry of an id
        self._drawn: dict[int, int] = {}  # how often an id was drawn
        self._ids = np.zeros(64, np.int32)
        self._values = np.zeros((3, 64), np.float32)  # bias, multiplier, offset
        self._prompt = list(prompt) if rules.phrases else []
        self._outputs: list[int] = list(outputs)
        for token, value in rules.bias.items():
            self._values[0, self._entry(token)] = value
        if rules.repetition != 1:
            for token in set(prompt):
                self._values[1, self._entry(token)] = rules.repetition
        if rules.penalises:
            for token, count in zip(*(a.tolist() for a in np.unique(self._outputs, return_counts=True)), strict=True):
                self._penalise(int(token), count)

    def append(self, token: int) -> None:
        """Take in a token that was drawn."""
        self._outputs.append(token)
        if self._rules.penalises:
            self._penalise(token, self._drawn.get(token, 0) + 1)

    def write(self, inputs: Mapping[str, Array], start: int) -> int:
        """Write the edits for the next step from entry `start` of the inputs on; returns their number."""
        count, bans = len(self._index), self._bans()
        stop = start + count
        end = stop + len(bans)
        inputs["edit_ids"][start:stop] = self._ids[:count]
        names = ("edit_bias", "edit_multiplier", "edit_offset")
        for name, values, neutral in zip(names, self._values, _BANNED, strict=True):
            inputs[name][start:stop] = values[:count]
            inputs[name][stop:end] = neutral
        inputs["edit_ids"][stop:end] = bans
        return end - start

    def _bans(self) -> list[int]:
        """Ids banned in the next step only."""
        rules = self._rules
        bans: list[int] = []
        if len(self._outputs) < rules.min_tokens:
            bans += rules.endings
        for head, last in rules.phrases:
            if self._ends_with(head):
                bans.append(last)
        return bans

    def _ends_with(self, head: tuple[int, ...]) -> bool:
        n, outputs = len(head), self._outputs
        if n <= len(outputs):
            return tuple(outputs[-n:]) == head
        before = n - len(outputs)
        return tuple(self._prompt[-before:] + outputs) == head

    def _penalise(self, token: int, count: int) -> None:
        """Penalties of a token drawn `count` times."""
        entry = self._entry(token)
        self._drawn[token] = count
        self._values[1, entry] = self._rules.repetition
        self._values[2, entry] = self._rules.presence + self._rules.frequency * count

    def _entry(self, token: int) -> int:
        entry = self._index.get(token)
        if entry is None:
            entry = self._index[token] = len(self._index)
            if entry == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
            self._ids[entry] = token
            self._values[:, entry] = (0.0, 1.0, 0.0)
        return entry
