"""Which token sequences a verification runs, and in which steps: every bucket runs prompt, decode and mixed steps.

All schedules run prefixes of the same few sequences. So the reference is computed once, every bucket is measured
against it at comparable positions, and a position that several schedules compute must have the same logits in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.manifest import BucketRecord
from inferir.ir.contract.symbols import Limits
from inferir.runtime.executor.dispatcher import Dispatcher

_FULL_PROMPT = 128
_MIXED = (3, 4, 2)  # sequences of a mixed step, in order of preference


@dataclass(frozen=True)
class Schedule:
    """Sequence i of the pool for `lengths[i]` tokens, all side by side, at most `chunk` tokens of each per step."""

    lengths: tuple[int, ...]
    chunk: int


@dataclass(frozen=True)
class Part:
    """The tokens `start` … `start + count` - 1 of a sequence, computed in a step of a bucket. kind: see `steps`."""

    bucket: str
    kind: str
    sequence: int
    start: int
    count: int


def token_pool(count: int, length: int, vocabulary: Sequence[int], first: int | None) -> list[list[int]]:
    """`count` sequences of ids from `vocabulary`, the same on every machine; each begins with `first` if given."""
    pool = []
    for sequence in range(count):
        ids = [] if first is None else [first]
        block = 0
        while len(ids) < length:
            digest = hashlib.sha256(f"{sequence} {block}".encode()).digest()
            ids += [vocabulary[int.from_bytes(digest[i : i + 8]) % len(vocabulary)] for i in range(0, 32, 8)]
            block += 1
        pool.append(ids[:length])
    return pool


def schedules(buckets: Iterable[BucketRecord], limits: Limits, longest: int, quick: bool) -> list[Schedule]:
    """Schedules that exercise every bucket. longest: tokens that a sequence may have."""
    found: dict[Schedule, None] = {}
    for bucket in buckets:
        options = [_decode(bucket, limits, longest, quick)]
        if not bucket.decode:
            options += [_prompt(bucket, limits, longest, quick), _mixed(bucket, limits, longest)]
        found.update((s, None) for s in options if s is not None)
    return list(found)


def steps(schedule: Schedule, buckets: Iterable[BucketRecord]) -> Iterator[list[Part]]:
    """The steps a schedule takes.

    A step is "decode" if every sequence contributes one token, "mixed" if they contribute different numbers of tokens,
    else "prompt".
    """
    programs = Dispatcher([(b, b.name) for b in buckets])
    done = [0] * len(schedule.lengths)
    while True:
        counts = [min(schedule.chunk, n - d) for n, d in zip(schedule.lengths, done, strict=True)]
        active = {i: c for i, c in enumerate(counts) if c}
        if not active:
            return
        decode = set(active.values()) == {1}
        kind = "decode" if decode else "mixed" if len(set(active.values())) > 1 else "prompt"
        bucket = programs.select(BatchDescriptor(sum(active.values()), decode))
        yield [Part(bucket, kind, i, done[i], c) for i, c in active.items()]
        for i, c in active.items():
            done[i] += c


def _decode(bucket: BucketRecord, limits: Limits, longest: int, quick: bool) -> Schedule | None:
    """Steps of one token for as many sequences as the bucket takes (quick: as few)."""
    most = min(bucket.hi - 1, limits.max_seqs)
    if bucket.lo > most:
        return None
    return Schedule((min(6 if quick else 12, longest),) * (bucket.lo if quick else most), 1)


def _prompt(bucket: BucketRecord, limits: Limits, longest: int, quick: bool) -> Schedule | None:
    """A prompt in two chunks of the bucket's size, of one sequence where one is long enough."""
    tokens = bucket.lo if quick else min(bucket.hi - 1, max(bucket.lo, _FULL_PROMPT))
    tokens = min(tokens, limits.max_tokens) if tokens <= longest else bucket.lo
    if tokens <= longest:
        whole = tokens + tokens // 2 if quick else 2 * tokens + 3
        return Schedule((min(max(whole, 2), longest),), tokens)
    for sequences in range(2, limits.max_seqs + 1):
        chunk = -(-tokens // sequences)
        if chunk <= longest and chunk * sequences <= limits.max_tokens:
            short = chunk * sequences - tokens
            return Schedule((chunk,) * (sequences - short) + (chunk - 1,) * short, chunk)
    return None


def _mixed(bucket: BucketRecord, limits: Limits, longest: int) -> Schedule | None:
    """Two steps: equal chunks of some sequences, then one token of the first beside chunks of the others."""
    for sequences in _MIXED:
        chunk = max(2, -(-bucket.lo // sequences), -(-(bucket.lo - 1) // (sequences - 1)))
        if (
            sequences <= limits.max_seqs
            and chunk * sequences <= min(bucket.hi - 1, limits.max_tokens)
            and 2 * chunk <= longest
        ):
            return Schedule((chunk + 1, *(2 * chunk,) * (sequences - 1)), chunk)
    return None
