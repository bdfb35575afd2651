"""A hundred mixed requests over HTTP through a cache that is too small for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_answer_is_that_of_the_request_alone(tiny_artifact: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.http_soak", str(tiny_artifact), "--requests", "120"]
    command += ["--distinct", "60", "--threads", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert done.returncode == 0
    counts = report["counts"]
    assert sum(counts.values()) == report["requests"] == 120
    assert min(counts[kind] for kind in ("answered", "streamed", "refused", "left")) > 2
    assert report["compared"] == counts["answered"] + counts["streamed"]
    assert report["preemptions"] > 0
    assert report["files"][-1] <= report["files"][1] + 4
