"""The command line in this process, and an artifact written by hand for commands that only read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from inferir.cli.main import app
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Run `inferir ARGS` in this process."""

    def invoke(*args: object, stdin: str | None = None) -> Result:
        done = CliRunner().invoke(app, [str(a) for a in args], input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Result(done.exit_code, done.stdout, done.stderr)

    return invoke


@pytest.fixture
def fails(cli: Callable[..., Result]) -> Callable[..., str]:
    """Run a command that must fail with status 1 and exactly one line of error, and return that line."""

    def invoke(*args: object) -> str:
        result = cli(*args)
        assert result.status == 1, result
        lines = [line for line in result.err.splitlines() if not line.startswith("inferir: warning: ")]
        assert len(lines) == 1, result.err
        assert lines[0].startswith("inferir: error: ")
        assert result.out == ""
        return lines[0]

    return invoke


@pytest.fixture(scope="session")
def without_template(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a model that has no chat template."""
    copy = shutil.copytree(tiny_artifact, tmp_path_factory.mktemp("without") / "art")
    (copy / "tokenizer" / "chat_template.jinja").unlink()
    write_manifest(copy, msgspec.structs.replace(read_manifest(copy), files=file_records(copy)))
    return copy
