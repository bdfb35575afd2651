"""Whether the inputs of submitted steps are right, by a simulation of the cache that knows nothing of the runtime.

A slot holds the keys and values of a token, which depend on the tokens before it and on nothing else. So the simulation
remembers of every slot which beginning of a text was written there last, and looks whether tables lead every token of a
step to the slots of its own text. Whether tables or slots are wrong, where they disagree, the blocks decide that the
sequence's manager says it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import NULL_BLOCK
from inferir.ir.contract.split_kv import SPLIT, split_count
from inferir.verify.step_record import Array, ScheduledPart, SubmittedStep, expected_ids, expected_positions

BLOCKS = "KV blocks"
"""The name of a fault of the managers: the blocks themselves, not how a step is told of them."""

Text = bytes
"""Digest of the beginning of a text up to a token, that token included."""


@dataclass(frozen=True)
class WrongInput:
    """An input of step `step` that is not as expected. index: where; both values."""

    name: str
    step: int
    index: tuple[int, ...]
    expected: int
    found: int
    text: str


@dataclass
class StepCheck:
    """Checks one step after the other. by_length: whether cached values depend on the length of the prompt, too."""

    groups: tuple[KVCacheGroup, ...]
    block_size: int
    by_length: bool = False
    _texts: dict[str, list[Text]] = field(default_factory=dict)
    _held: list[dict[int, Text]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._held = [{} for _ in self.groups]

    def held(self, group: int) -> dict[int, Text]:
        """What every slot of a group holds."""
        return self._held[group]

    def check(self, step: SubmittedStep, *, samples: bool) -> Iterator[WrongInput]:
        """What is wrong with a step, the most telling first. samples: whether its logit rows are those of tokens whose
        successor is drawn, as in serving."""
        yield from _equal("ids", step, expected_ids(step.parts))
        yield from _equal("positions", step, expected_positions(step.parts))
        if "lengths" in step.inputs:
            prompts = np.repeat([p.prompt for p in step.parts], [p.count for p in step.parts])
            yield from _equal("lengths", step, np.maximum(prompts, expected_positions(step.parts) + 1))
        if samples:
            yield from _rows(step)
        for number, group in enumerate(self.groups):
            yield from self._group(number, group, step)

    def text(self, part: ScheduledPart, position: int) -> Text:
        """The beginning of a request's text up to a position."""
        texts = self._texts.setdefault(part.request, [])
        while len(texts) <= position:
            before = texts[-1] if texts else str(part.prompt if self.by_length else "").encode()
            token = part.tokens[len(texts)].to_bytes(8, "little")
            texts.append(hashlib.blake2b(before + token, digest_size=12).digest())
        return texts[position]

    def _group(self, number: int, group: KVCacheGroup, step: SubmittedStep) -> Iterator[WrongInput]:
        held, size = self._held[number], self.block_size
        slots, tables = step.inputs[group.slots], step.inputs[group.block_tables]
        begins = _begins(group, step)
        first = 0
        for part in step.parts:
            for i in range(part.count):
                held[int(slots[first + i])] = self.text(part, part.start + i)
            first += part.count
        if group.items is not None:
            yield from _items(group, step)
        first = 0
        for part in step.parts:
            begin, blocks = begins.get(part.row, 0), part.blocks[number]
            for i in range(part.count):
                at, slot = part.start + i, int(slots[first + i])
                own = blocks[at // size] * size + at % size
                if slot != own:
                    text = f"position {at} of a sequence is to be written to slot {own}"
                    yield WrongInput(group.slots, step.number, (first + i,), own, slot, text)
            first += part.count
            read = range(max(0, int(group.spec.reads.first(part.start))), part.start + part.count)
            yield from _table(group, step, part, tables, begin, blocks, read, size)
            for at in read:
                slot = blocks[at // size] * size + at % size
                if held.get(slot) != self.text(part, at):
                    text = (
                        f"a token at position {part.start} reads position {at} in slot {slot}, which holds "
                        f"{'another text' if slot in held else 'nothing'}"
                    )
                    yield WrongInput(BLOCKS, step.number, (number, at), slot, slot, text)


def _equal(name: str, step: SubmittedStep, expected: Array) -> Iterator[WrongInput]:
    found = step.inputs[name]
    if len(found) != len(expected):
        text = f"{len(expected)} tokens are scheduled, the step has {len(found)}"
        yield WrongInput(name, step.number, (), len(expected), len(found), text)
        return
    for i in np.flatnonzero(found != expected).tolist():
        yield WrongInput(name, step.number, (i,), int(expected[i]), int(found[i]), f"token {i} of the step")


def _rows(step: SubmittedStep) -> Iterator[WrongInput]:
    last = np.cumsum([p.count for p in step.parts]) - 1
    expected = sorted(int(row) for row, part in zip(last, step.parts, strict=True) if part.ends)
    found = sorted([*step.inputs["rows"].tolist(), *step.inputs.get("argmax_rows", np.zeros(0, np.int32)).tolist()])
    if found != expected:
        place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
        a, b = ([*values, -1][min(place, len(values))] for values in (expected, found))
        yield WrongInput("rows", step.number, (place,), a, b, f"logits are wanted of tokens {expected}, not {found}")


def _begins(group: KVCacheGroup, step: SubmittedStep) -> dict[int, int]:
    """Which position the table of each row begins with, as its work items say."""
    if group.items is None:
        return {}
    first: dict[int, ScheduledPart] = {}
    offset: dict[int, int] = {}
    row = 0
    for part in step.parts:
        first[part.row], offset[part.row] = part, row
        row += part.count
    begins = {}
    for seq, token, count, position, *_ in step.inputs[group.items].tolist():
        if count and seq in first:
            begins[seq] = first[seq].start + (token - offset[seq]) - position
    return begins


def _items(group: KVCacheGroup, step: SubmittedStep) -> Iterator[WrongInput]:
    """Work items: every token in one whole item, or in one for each of its splits; and a beginning that fits."""
    name = str(group.items)
    items = step.inputs[name].tolist()
    rows = [part for part in step.parts for _ in range(part.count)]
    splits: list[list[int]] = [[] for _ in rows]
    begins = _begins(group, step)
    for number, (seq, token, count, position, split, _) in enumerate(items):
        for i in range(count):
            at = token + i
            if not 0 <= at < len(rows) or rows[at].row != seq:
                wanted = rows[at].row if 0 <= at < len(rows) else -1
                yield WrongInput(name, step.number, (number, 0), wanted, seq, f"item {number} has token {at}")
                return
            splits[at].append(split)
        if count and position < 0:
            yield WrongInput(name, step.number, (number, 3), 0, position, f"item {number} begins before its table")
    offset = 0
    for part in step.parts:
        begin = begins.get(part.row, 0)
        lowest = max(0, int(group.spec.reads.first(part.start)))
        if (
            begin < 0
            or begin > lowest
            or begin % SPLIT
            or (group.spec.reads.period and begin % group.spec.reads.period)
        ):
            text = f"the table of row {part.row} begins with position {begin}, its first token reads {lowest}"
            yield WrongInput(name, step.number, (), 0, begin, text)
        for i in range(part.count):
            whole = split_count(part.start + i + 1 - begin)
            if sorted(splits[offset + i]) not in ([-1], list(range(whole))) and not _covers(splits[offset + i], whole):
                text = f"token {offset + i} of the step is in the items of splits {sorted(splits[offset + i])}"
                yield WrongInput(name, step.number, (offset + i,), whole, len(splits[offset + i]), text)
        offset += part.count


def _covers(splits: Sequence[int], needed: int) -> bool:
    """Whether items of splits have each of the first `needed` once; those behind hold nothing that a token sees."""
    return len(set(splits)) == len(splits) and set(range(needed)) <= set(splits)


def _table(
    group: KVCacheGroup,
    step: SubmittedStep,
    part: ScheduledPart,
    tables: Array,
    begin: int,
    blocks: Sequence[int],
    read: range,
    size: int,
) -> Iterator[WrongInput]:
    """Table entries that are not the blocks that the manager says."""
    for block in range(read.start // size, (read.stop - 1) // size + 1):
        column = block - begin // size
        found = int(tables[part.row, column]) if 0 <= column < tables.shape[1] else NULL_BLOCK
        if found != blocks[block]:
            text = f"positions {block * size} to {block * size + size - 1} of the sequence in row {part.row}"
            yield WrongInput(group.block_tables, step.number, (part.row, column), blocks[block], found, text)
