"""What is recorded of steps: values that the engine process sends to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class StepRecord(msgspec.Struct, array_like=True):
    """One step. Times are nanoseconds of the monotonic clock.

    begin: when it began; phases: each one's name and end, in order. tokens, decode: its descriptor; prompt_tokens: of
    these, tokens of prompts. counts: as `StepCounts`. requests: that took part. running, waiting, kv_used: requests and
    KV blocks in use after it. ops_begin, ops_end: around the step program; stamps: int64[operations + 1], the cycle
    counter at the program's start and after each operation; claims: int64[workers, operations, 4], what timed workers
    did (`inferir.ir.contract.abi.CLAIMS`), or nothing. items: attention work items i32[A, 6] by step input, if they are
    recorded.
    """

    begin: int
    phases: list[tuple[str, int]]
    tokens: int = 0
    decode: bool = False
    prompt_tokens: int = 0
    counts: tuple[int, ...] = ()
    requests: int = 0
    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    ops_begin: int = 0
    ops_end: int = 0
    stamps: bytes = b""
    claims: bytes = b""
    items: dict[str, bytes] = {}

    @property
    def end(self) -> int:
        return self.phases[-1][1]

    @property
    def kind(self) -> str:
        """ "decode", "prefill", or "mixed" where some sequences decode and others read their prompts."""
        if self.prompt_tokens == 0:
            return "decode"
        return "prefill" if self.prompt_tokens == self.tokens else "mixed"

    def nanoseconds(self, cycles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """When the cycle counter was at `cycles`: the stamps are laid over the time around the program."""
        import numpy as np  # by the engine and by what makes a trace; the front process holds records without it

        stamps = np.frombuffer(self.stamps, np.int64)
        scale = (self.ops_end - self.ops_begin) / max(1, int(stamps[-1] - stamps[0]))
        passed: npt.NDArray[np.int64] = np.rint((cycles - stamps[0]) * scale).astype(np.int64)
        return self.ops_begin + passed

    def operation_ends(self) -> list[int]:
        """Nanoseconds at the step program's start and after each operation: the operations tile the time around it."""
        import numpy as np

        if not self.stamps:
            return []
        found: list[int] = self.nanoseconds(np.frombuffer(self.stamps, np.int64)).tolist()
        return found

    def worker_claims(self) -> npt.NDArray[np.int64]:
        """`claims` as [workers, operations, 4]; workers may be 0."""
        import numpy as np

        operations = max(1, len(self.stamps) // 8 - 1)
        return np.frombuffer(self.claims, np.int64).reshape(-1, operations, 4)


class Recording(msgspec.Struct, array_like=True):
    """Steps that followed one another. begin, end: when the recording did. cut: why steps are missing at its end, or
    ""; missed: how many. threads, kv_blocks: of the engine.
    """

    begin: int
    end: int
    steps: list[StepRecord]
    threads: int
    kv_blocks: int
    cut: str = ""
    missed: int = 0
