"""`inferir verify --json` in a process of its own, once for each artifact, whoever asks first."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One verification; the fields are the options of `inferir verify`. number: tells it from others of the session."""

    number: int
    artifact: Path
    model: str | None = None
    thresholds: str | None = None
    baseline: str | None = None
    write_baseline: str | None = None
    html: str | None = None
    quick: bool = False
    speed: bool | None = None

    def arguments(self) -> list[str]:
        """The command line behind `inferir`."""
        found = ["verify", str(self.artifact), "--json"]
        for name in ("model", "thresholds", "baseline", "write_baseline", "html"):
            value = getattr(self, name)
            if value is not None:
                found += [f"--{name.replace('_', '-')}", value]
        found += ["--quick"] if self.quick else []
        return found + ([] if self.speed is None else ["--speed" if self.speed else "--no-speed"])


@dataclass(frozen=True)
class Outcome:
    """The report of `--json`, or None and an error of one line."""

    report: dict[str, Any] | None
    error: str = ""


class Runs:
    """Outcomes of runs. folder: where processes of one test session share them; one of them verifies at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, Outcome] = {}

    def outcome(self, run: Run) -> Outcome:
        """The outcome of `run`, which is made now unless it is known."""
        if run.number not in self._known:
            self._known[run.number] = self._shared(run)
        return self._known[run.number]

    def _shared(self, run: Run) -> Outcome:
        file = self._folder / f"{run.number}.json"
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if file.exists():
                return Outcome(**json.loads(file.read_text(encoding="utf-8")))
            outcome = verify_in_process(run)
            file.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        return outcome


def verify_in_process(run: Run) -> Outcome:
    """Run the command and read what it prints."""
    done = subprocess.run([sys.executable, "-m", "inferir", *run.arguments()], capture_output=True, check=False)
    errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode in (0, 1) and done.stdout.strip():
        return Outcome(json.loads(done.stdout))
    if done.returncode < 0:
        return Outcome(None, f"inferir verify was ended by {signal.Signals(-done.returncode).name}")
    return Outcome(None, errors[-1] if errors else f"inferir verify ended with status {done.returncode}")
