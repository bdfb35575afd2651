"""Benchmarks: ratios measured side by side in one run, through the public API only."""
