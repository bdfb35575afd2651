"""Which step program a batch runs with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.manifest import BucketRecord
from inferir.ir.errors import EngineError

Program = TypeVar("Program")


class Dispatcher(Generic[Program]):
    """Finds the program of a descriptor in one look-up; single-token steps fall back to the programs for any step."""

    def __init__(self, programs: Sequence[tuple[BucketRecord, Program]]) -> None:
        self._found: dict[BatchDescriptor, Program] = {}
        for decode in (False, True):
            for bucket, program in programs:
                if bucket.decode == decode:
                    for tokens in range(bucket.lo, bucket.hi):
                        self._found[BatchDescriptor(tokens, True)] = program
                        if not decode:
                            self._found[BatchDescriptor(tokens, False)] = program

    def select(self, descriptor: BatchDescriptor) -> Program:
        """Raises `EngineError` if the artifact has no bucket for the descriptor."""
        try:
            return self._found[descriptor]
        except KeyError:
            raise EngineError(f"the artifact has no bucket for a step of {descriptor.tokens} tokens") from None
