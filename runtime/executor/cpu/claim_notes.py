"""Memory in which timed workers note their claims (`inferir.ir.contract.abi.CLAIMS`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferir.ir.contract import abi
from inferir.runtime.memory import address, allocate


class ClaimNotes:
    """Notes of `workers` workers about steps of up to `operations` operations."""

    def __init__(self, workers: int, operations: int) -> None:
        self._workers = workers
        words = abi.CLAIMS_HEAD + workers * operations * abi.CLAIM_WORDS
        self._memory = allocate(words * 8, "notes of claims").view(np.int64)
        self._operations = 0
        self.address = address(self._memory)

    def begin(self, table: int, row_bytes: int, operations: int) -> None:
        """Make room for the notes of a step whose table is at address `table`."""
        self._operations = operations
        self._memory[:] = 0
        self._memory[:3] = (table, row_bytes, operations * abi.CLAIM_WORDS * 8)

    def taken(self) -> npt.NDArray[np.int64]:
        """Of the step that has ended: [workers, operations, CLAIM_WORDS]."""
        shape = (self._workers, self._operations, abi.CLAIM_WORDS)
        words = self._workers * self._operations * abi.CLAIM_WORDS
        return self._memory[abi.CLAIMS_HEAD : abi.CLAIMS_HEAD + words].reshape(shape).copy()
