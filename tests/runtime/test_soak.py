"""Hundreds of mixed requests through a cache that is too small for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_answer_is_that_of_the_request_alone(tiny_artifact: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.soak", str(tiny_artifact), "--requests", "300"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert report["different"] == []
    assert report["finished"] + report["closed"] + report["refused"] == report["requests"] == 300
    assert report["closed"] > 10
    assert report["refused"] > 5
    assert report["preemptions"] > 10
    assert report["prefix_hits"] > 1000
