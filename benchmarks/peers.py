"""Which engines to compare with, from a TOML file: a table per engine, whose name labels it in results.

    [vllm]
    engine = "vllm"                  # the kind; the table's name if left out
    python = "vllm/bin/python"       # interpreter that has the engine; default: the one that runs the benchmark
    model = "models/smollm2-135m"

Paths are relative to the file. `benchmarks/README.md` lists the kinds and how to install them.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

KINDS = ("inferir", "hf", "hf_compile", "llama_cpp", "openvino", "vllm")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An engine and the model that it runs. bin: the folder of llama.cpp's programs."""

    name: str
    kind: str
    model: str
    python: str = sys.executable
    bin: str = ""


def read(path: Path) -> list[Peer]:
    """The file's engines, in its order. Exits with a message if it has a mistake."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SystemExit(f"{path}: {error}") from None
    return [_peer(path, name, fields) for name, fields in tables.items()]


def _peer(path: Path, name: str, fields: object) -> Peer:
    where = f"{path}: [{name}]"
    if not isinstance(fields, dict):
        raise SystemExit(f"{where} is not a table")
    kind = fields.pop("engine", name)
    if kind not in KINDS:
        raise SystemExit(f"{where}: {kind!r} is no engine; there are {', '.join(KINDS)}")
    needed = {"model", "bin"} if kind == "llama_cpp" else {"model"}
    if missing := needed - fields.keys():
        raise SystemExit(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := fields.keys() - needed - {"python"}:
        raise SystemExit(f"{where}: unknown {', '.join(sorted(unknown))}")
    # Not resolved: the interpreter of a virtual environment is a link, and works through its own name only.
    paths = {key: str(path.absolute().parent / Path(value).expanduser()) for key, value in fields.items()}
    for key, value in paths.items():
        if not Path(value).exists():
            raise SystemExit(f"{where}: {key} does not exist: {value}")
    return Peer(name=name, kind=kind, **paths)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that all comparisons share."""
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--peers", type=Path, metavar="FILE", help="TOML file with the engines to compare with")
    parser.add_argument("--only", metavar="NAME,...", help="take only these of the file's engines")
    parser.add_argument("--model-name", metavar="NAME", help="title, and part of file names; default: the artifact's")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for records, plots and logs")


def given_peers(given: argparse.Namespace, kinds: tuple[str, ...], model: str | None = None) -> list[Peer]:
    """Inferir, then the given engines of the kinds that a benchmark can measure; the others are named on stderr.

    model: without a file, the model of transformers in this interpreter.
    """
    peers = [Peer(name="inferir", kind="inferir", model=str(given.artifact.absolute()))]
    if given.peers is not None:
        peers += read(given.peers)
    elif model is not None:
        peers.append(Peer(name="hf", kind="hf", model=str(Path(model).absolute())))
    if given.only is not None:
        wanted = given.only.split(",")
        if unknown := set(wanted) - {p.name for p in peers}:
            raise SystemExit(f"--only: {given.peers} has no {', '.join(sorted(unknown))}")
        peers = [p for p in peers if p.name in ("inferir", *wanted)]
    absent = [kind for kind in kinds if kind not in {p.kind for p in peers}]
    if absent:
        print(f"not configured, left out: {', '.join(absent)}", file=sys.stderr)
    return [p for p in peers if p.kind in kinds]


def model_name(given: argparse.Namespace) -> str:
    return str(given.model_name or given.artifact.absolute().stem)
