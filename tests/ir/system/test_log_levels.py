"""INFERIR_LOG: levels by room, in every process, and an error for what is not understood."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferir import LLM, SamplingParams
from inferir.ir.errors import InferirError
from inferir.ir.system import log_levels as ll

LINE = re.compile(r"inferir: (debug|info|warning|error): ([a-z]+): \S.*")


@pytest.fixture(autouse=True)
def _same_levels_afterwards() -> Iterator[None]:
    loggers = [logging.getLogger("inferir"), *(logging.getLogger(f"inferir.{r}") for r in ll.room_names())]
    before = [(x, x.level) for x in loggers]
    yield
    for logger, level in before:
        logger.setLevel(level)


def set_to(text: str, option: str | None = None, usual: str = "warning") -> str:
    """What is logged with that value of the variable."""
    ll.set_levels(option, usual, {"INFERIR_LOG": text})
    return ll.levels_text()


@pytest.mark.parametrize(
    ("text", "option", "usual", "logged"),
    [
        ("", None, "warning", "warning"),
        ("", None, "info", "info"),
        ("debug", None, "info", "debug"),
        ("debug", "error", "info", "error"),
        ("info,codegen=debug", None, "warning", "info,codegen=debug"),
        ("codegen=debug", "error", "info", "error,codegen=debug"),
        (" Passes = INFO , ERROR ", None, "info", "error,passes=info"),
    ],
)
def test_levels(text: str, option: str | None, usual: str, logged: str) -> None:
    assert set_to(text, option, usual) == logged
    assert set_to(logged) == logged  # as a child has it


def test_a_room_is_all_below_its_folder() -> None:
    set_to("error,codegen=debug")
    assert logging.getLogger("inferir.codegen.cache.compile_cache").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("inferir.passes.manager").isEnabledFor(logging.WARNING)
    set_to("info")
    assert not logging.getLogger("inferir.codegen.cache.compile_cache").isEnabledFor(logging.DEBUG)


def test_rooms_are_the_folders_of_the_package() -> None:
    assert {"frontend", "ir", "passes", "codegen", "runtime", "server", "cli", "compile"} <= set(ll.room_names())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("loud", "'loud' is no level; levels are debug, info, warning, error"),
        ("codegen=", "'' is no level"),
        ("attic=info", "'attic' is no room; rooms are api, "),
        ("=info", "'' is no room"),
        ("info,debug", "'debug' is a second level for all rooms"),
        ("cli=info,cli=debug", "'cli=debug' is a second level for cli"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_variable(text: str, reason: str) -> None:
    with pytest.raises(InferirError) as error:
        ll.parse_levels(text)
    assert str(error.value).startswith(f"the environment variable INFERIR_LOG is {text!r}: {reason}")


def test_the_command_line_reports_a_bad_value(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERIR_LOG", "loud")
    assert "INFERIR_LOG is 'loud'" in fails("cache", "ls")


def test_a_line() -> None:
    handler = logging.StreamHandler(out := io.StringIO())
    handler.setFormatter(ll.LineFormat())
    for name in ("inferir", "inferir.codegen.cache.store"):
        handler.emit(logging.LogRecord(name, logging.INFO, "", 0, "a %s\nb", (1,), None))
    assert out.getvalue() == "inferir: info: a 1 b\ninferir: info: codegen: a 1 b\n"


def test_a_command_logs_what_it_does(tiny_artifact: Path) -> None:
    """Nothing is logged unless it is asked for, and then a line for each thing."""
    command = [sys.executable, "-P", "-m", "inferir", "run", str(tiny_artifact), "hi", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "inferir: " not in done.stderr
    environment = {**os.environ, "INFERIR_LOG": "runtime=info"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    lines = [x for x in done.stderr.splitlines() if x.startswith("inferir: ")]
    assert all(LINE.fullmatch(x) for x in lines)
    assert f"inferir: info: runtime: {tiny_artifact}: checked and mapped in" in lines[0]
    assert re.search(r"runtime: \d+ threads, \d+ KV blocks", lines[1])


def test_steps_do_not_ask_the_log(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation of many steps looks at levels no more often than one of few."""
    asked: list[int] = []
    before = logging.Logger.isEnabledFor
    monkeypatch.setattr(logging.Logger, "isEnabledFor", lambda self, level: asked.append(level) or before(self, level))
    counts = []
    with LLM(tiny_artifact, threads=1) as llm:
        for tokens in (2, 30):
            asked.clear()
            llm.generate(["hi"], SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0))
            counts.append(len(asked))
    assert counts[0] == counts[1]
