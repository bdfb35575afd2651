"""Malformed and hostile bodies: refused or answered, and the server goes on as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_400_bodies(tiny_artifact: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", str(tiny_artifact), "--bodies", "400", "--seed", "1"]
    command += ["--kv-cache-memory", "4MiB", "--threads", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert done.returncode == 0
    seen: Counter[str] = Counter()
    for statuses in report["statuses"].values():
        seen.update(statuses)
    assert sum(seen.values()) == 400
    assert seen["400"] > 200
    assert seen["200"] > 40
    assert report["malformed"] > 120
    assert report["references"] >= 2
