"""An environment of its own with the distribution of `plugins/acme/`, beside everything that runs these tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import inferir

ACME = Path(__file__).with_name("plugins") / "acme"


class Environment:
    """A virtual environment whose own `site-packages` come first, and then what this process imports from."""

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.python = folder / "bin" / "python"
        self.home = folder
        (self.site,) = (folder / "lib").glob("python*/site-packages")
        places = [os.path.dirname(p) for p in inferir.__path__] + [p for p in sys.path if os.path.isabs(p)]
        (self.site / "beside.pth").write_text("".join(f"{p}\n" for p in dict.fromkeys(places)))

    def install(self, distribution: Path) -> None:
        """Install a source folder, from a copy, without any network."""
        copy = self.home / "source" / distribution.name
        shutil.copytree(distribution, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "-q")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python), "install"]
        subprocess.run([*pip, *options, str(copy)], check=True, env=self.variables(), timeout=120)

    def variables(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, "HF_HOME": str(self.home / "hf"), **more}

    def run(self, *arguments: str, status: int = 0, **variables: str) -> str:
        """What a command of Inferir prints; or, of one that fails with `status`, its errors."""
        return self.code("from inferir.cli.main import main; main()", *arguments, status=status, **variables)

    def code(self, program: str, *arguments: str, status: int = 0, **variables: str) -> str:
        """What a program in Python prints; or, of one that fails with `status`, its errors."""
        command = [str(self.python), "-P", "-c", program, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=180, env=self.variables(**variables)
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr if status else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))
