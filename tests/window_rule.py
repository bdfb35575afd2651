"""Rules of what tokens read, for tests that think in windows."""

from inferir.ir.contract.kv_reads import FULL_ATTENTION, Chunks, Reads, SlidingWindow


def reads(window: int) -> Reads:
    """A window of so many tokens; 0 for everything, -n for chunks of n tokens."""
    return SlidingWindow(window) if window > 0 else Chunks(-window) if window else FULL_ATTENTION
