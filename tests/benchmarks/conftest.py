"""Benchmarks are no part of the installed package: find them in the repository."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
