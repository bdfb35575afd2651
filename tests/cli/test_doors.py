"""Every command through streams, encodings, limits and paths that nobody wishes for: a result, or one line that says
what is wrong. "This is a bug" is for bugs, so nothing from outside may reach it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from artifacts import SMALL
from doors import Cell, run

ANSWER = ("--max-tokens", "2", "--threads", "1", "--kv-cache-memory", "4MiB")
BENCH = ("--repetitions", "1", "--warmup", "0", "--input-len", "4", "--output-len", "2", "--threads", "1")
BAD = os.fsdecode(b"h\xffi")
NO_SERVER = ("--url", "http://127.0.0.1:9")
ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
COMMANDS = ("run", "chat", "inspect", "json", "plan", "cache", "bench", "help", "version")


@pytest.fixture(scope="module")
def commands(tiny_artifact: Path, tiny_model: Path) -> dict[str, list[str]]:
    art = str(tiny_artifact)
    return {
        "run": ["run", art, "hi", *ANSWER],
        "chat": ["chat", art, *ANSWER, "--stats"],
        "inspect": ["inspect", art],
        "json": ["inspect", art, "--json"],
        "plan": ["plan", str(tiny_model), "--max-num-batched-tokens", "64", "--max-num-seqs", "8"],
        "cache": ["cache", "ls"],
        "bench": ["bench", "latency", art, *BENCH],
        "compile": ["compile", str(tiny_model), "-o", "out", *SMALL],
        "verify": ["verify", art, "--model", str(tiny_model), "--quick"],
        "help": ["--help"],
        "version": ["--version"],
    }


@pytest.fixture
def odd_artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    """An artifact whose path has a byte that is no UTF-8, a line end and a bracket."""
    return shutil.copytree(tiny_artifact, tmp_path / os.fsdecode(b"a\xff\n[b]"))


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_streams(commands: dict[str, list[str]], name: str) -> None:
    """Without a standard output the result is lost, which is a failure of its own kind; the others are not missed."""
    run(Cell(commands[name], (141,), close=(1,), stdin=b"hello\n"))
    run(Cell(commands[name], (0,), close=(0, 2)))


@pytest.mark.parametrize("name", ["run", "chat", "inspect", "json", "cache", "bench", "help"])
def test_full_and_abandoned_streams(commands: dict[str, list[str]], name: str) -> None:
    run(Cell(commands[name], (1,), full=(1,), stdin=b"hello\n", says="standard output: No space left on device"))
    run(Cell(commands[name], (141,), left=(1,), full=(2,), stdin=b"hello\n"))


def test_a_failure_that_cannot_be_said() -> None:
    for streams in ({"close": (1, 2)}, {"full": (1, 2)}, {"left": (1, 2)}):
        run(Cell(["inspect", "/nowhere"], (1,), **streams))  # type: ignore[arg-type]
        run(Cell(["inspect"], (2,), **streams))  # type: ignore[arg-type]


def test_slow_commands_without_streams(commands: dict[str, list[str]], tmp_path: Path) -> None:
    run(Cell(commands["compile"], (141,), close=(0, 1, 2), cwd=tmp_path))
    assert (tmp_path / "out" / "manifest.json").exists()
    run(Cell(commands["compile"], (1,), full=(1,), cwd=tmp_path, says="standard output"))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "ART", BAD, "--raw"], "the prompt is not UTF-8"),
        (["run", "ART", "hi", "--system", BAD], "--system is not UTF-8"),
        (["run", "ART", "hi", "--stop", "a", "--stop", BAD], "--stop is not UTF-8"),
        (["run", "ART", "hi", "--bad-word", BAD], "--bad-word is not UTF-8"),
        (["run", "ART", "hi", "--regex", BAD], "--regex is not UTF-8"),
        (["run", "ART", "hi", "--json-schema", BAD], "--json-schema h\\xffi: No such file"),
        (["run", BAD, "hi"], "h\\xffi/manifest.json"),
        (["chat", "ART", "--system", BAD], "--system is not UTF-8"),
        (["chat", *NO_SERVER, "--api-key", BAD], "--api-key is not UTF-8"),
        (["inspect", BAD], "h\\xffi/manifest.json"),
        (["serve", BAD], "h\\xffi/manifest.json"),
        (["serve", "ART", "--served-model-name", BAD], "--served-model-name is not UTF-8"),
        (["compile", BAD, "-o", "out"], "no such model"),
        (["plan", BAD], "no such model"),
        (["verify", BAD, "--model", BAD], "h\\xffi/manifest.json"),
        (["bench", "serve", "--goodput", BAD], "--goodput is not UTF-8"),
        (["cache", "explain", BAD], "is not UTF-8"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value).replace(BAD, "BAD"),
)
def test_bytes_that_are_no_text(args: list[str], says: str, tiny_artifact: Path, tmp_path: Path) -> None:
    run(Cell([str(tiny_artifact) if a == "ART" else a for a in args], (1,), cwd=tmp_path, says=says))


def test_input_that_is_no_text(tiny_artifact: Path) -> None:
    art = str(tiny_artifact)
    for env in ({}, {"PYTHONIOENCODING": "utf-8:strict"}, ASCII):
        run(Cell(["run", art, "--raw", *ANSWER], (1,), stdin=b"h\xffi", env=env, says="standard input is not UTF-8"))
    run(Cell(["chat", art, *ANSWER], (1,), stdin=b"h\xffi\n", says="the message is not UTF-8"))


@pytest.mark.parametrize(
    "env",
    [
        ASCII,
        {"PYTHONIOENCODING": "ascii:strict"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "xx_YY.none", "TERM": "dumb", "COLUMNS": "0"},
    ],
    ids=["posix", "ascii", "latin-1", "unknown"],
)
def test_encodings(env: dict[str, str], commands: dict[str, list[str]], odd_artifact: Path) -> None:
    """What cannot be shown is written out; a prompt is the same text in any locale."""
    for name in ("run", "inspect", "help"):
        run(Cell(commands[name], env=env))
    out, _ = run(Cell(["inspect", odd_artifact, "--json"], env=env))
    assert json.loads(out)["artifact"] == str(odd_artifact)
    prompt = "é 😀"
    expected, _ = run(Cell(["run", odd_artifact, prompt, "--raw", "-q", *ANSWER], env={"PYTHONIOENCODING": "ascii"}))
    if env is ASCII:
        given, _ = run(Cell(["run", odd_artifact, prompt, "--raw", "-q", *ANSWER], env=env))
        assert given.encode("ascii", "backslashreplace") == expected.encode("ascii", "backslashreplace")


def test_a_path_of_any_bytes(odd_artifact: Path, tmp_path: Path) -> None:
    run(Cell(["inspect", odd_artifact]))
    run(Cell(["inspect", odd_artifact, "--html", tmp_path / os.fsdecode(b"page\xff")]))
    assert (tmp_path / os.fsdecode(b"page\xff")).read_bytes().startswith(b"<!")
    run(Cell(["bench", "latency", odd_artifact, *BENCH]))
    run(Cell(["run", odd_artifact, "hi", "--max-tokens", "999", *ANSWER[2:]], (0, 1)))
    (odd_artifact / "weights" / "model.safetensors").unlink()
    run(Cell(["run", odd_artifact, "hi"], (1,), says="a\\xff [b]/weights/model.safetensors: missing from the artifact"))
    run(Cell(["serve", odd_artifact, "--port", "0"], (1,), says="a\\xff [b]/weights/model.safetensors"))


@pytest.mark.parametrize("place", ["/", "/dev/null", "", "~nobody-of-this-name/x", "a" * 5000, "-"])
def test_places_that_are_no_artifact(place: str, tmp_path: Path) -> None:
    for command in ("inspect", "run", "serve"):
        run(Cell([command, place, *(["hi"] if command == "run" else [])], (1, 2), cwd=tmp_path))
    run(Cell(["compile", place, "-o", "out"], (1, 2), cwd=tmp_path))


def test_results_that_go_to_devices(tiny_artifact: Path, tmp_path: Path) -> None:
    for place in ("/dev/full", "/proc/none", str(tmp_path), "/nowhere/x"):
        run(Cell(["inspect", tiny_artifact, "--html", place], (1,), says=f"{place}: cannot be written"))


def test_surroundings(commands: dict[str, list[str]], tmp_path: Path) -> None:
    """No working folder, no home, a temporary folder that is none, signals that a parent ignored or blocked."""
    signals = (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
    run(Cell(commands["run"], without_cwd=True))
    run(Cell(commands["inspect"], without_cwd=True, env={"HOME": None, "PATH": None, "LANG": None}))
    run(Cell(commands["cache"], env={"HOME": "/dev/null", "INFERIR_CACHE": None, "XDG_CACHE_HOME": "relative"}))
    run(Cell(commands["run"], env={"TMPDIR": "/nowhere"}, ignored=signals))
    run(Cell(commands["bench"], blocked=(*signals, signal.SIGTERM)))
    run(Cell(commands["inspect"], (1,), env={"INFERIR_DEBUG": "perhaps"}, says="INFERIR_DEBUG"))


def test_limits(commands: dict[str, list[str]], tmp_path: Path) -> None:
    """Few open files, little memory, no room in files, a small stack: it works all the same, or says what is short."""
    for limits in ({resource.RLIMIT_NOFILE: 12}, {resource.RLIMIT_AS: 150 << 20}, {resource.RLIMIT_STACK: 256 << 10}):
        run(Cell(commands["run"], (0, 1), limits=limits))
    small = Cell([*commands["compile"], "--no-cache"], (1,), limits={resource.RLIMIT_FSIZE: 20_000}, cwd=tmp_path)
    run(small)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["run", "ART", "hi", "--temperature", "nan"],
        ["run", "ART", "hi", "--seed", "9" * 30],
        ["run", "ART", "hi", "--top-p", "inf"],
        ["run", "ART", "hi", "--threads", "0"],
        ["run", "ART", "hi", "--kv-cache-memory", "1e400"],
        ["bench", "startup", "ART", "--timeout", "inf"],
        ["bench", "startup", "ART", "--timeout", "nan"],
        ["bench", "latency", "ART", "--repetitions", "9" * 30],
        ["bench", "serve", *NO_SERVER, "--request-rate", "nan"],
        ["bench", "serve", "--url", "http://[::1"],
        ["cache", "prune", "--max-size", "nan"],
        ["serve", "ART", "--port", "70000"],
        ["serve", "ART", "--grace", "nan"],
        ["serve", "ART", "--threads", "9" * 30],
    ],
    ids=" ".join,
)
def test_numbers_out_of_range(args: list[str], tiny_artifact: Path, tmp_path: Path) -> None:
    given = [str(tiny_artifact) if a == "ART" else a for a in args]
    run(Cell(given, (1, 2), env={"INFERIR_CACHE": str(tmp_path / "cache")}))
