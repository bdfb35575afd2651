"""Rules of what tokens read, for tests that think in windows."""

from inferir.ir.contract.kv_reads import FullAttention, Reads, SlidingWindow


def reads(window: int) -> Reads:
    """A window of so many tokens; 0 for everything."""
    return SlidingWindow(window) if window else FullAttention()
