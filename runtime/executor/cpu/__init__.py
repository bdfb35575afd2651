"""The CPU executor: step programs over mapped weights."""
