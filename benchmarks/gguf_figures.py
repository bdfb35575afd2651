"""What llama.cpp computes for the tests' tiny GGUF models: writes tests/frontend/data/gguf_logits.json.

    python -m benchmarks.gguf_figures --server 'llama-server -m {model} --port {port} -c {context} …'

For every model of tests/gguf_models.py: the log-probabilities of the next token after prompts of several lengths, with
keys and values in f32. Models with two sets of frequency factors choose by the context they are started with, so they
are asked twice: with a context within the original one, and beyond it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.llama_server import COMMAND, serving

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "tests" / "frontend" / "data" / "gguf_logits.json"
LENGTHS, SHORT_CONTEXT, LONG_CONTEXT = (7, 60, 300), 256, 512
TOP = 8


def ask(gguf: Any, command: str, folder: Path, context: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Length -> the TOP most likely tokens and their log-probabilities."""
    from gguf_models import prompt

    path = gguf.write(folder / "model.gguf")
    with serving(path, command, context) as server:
        out = {}
        for length in lengths:
            (step,) = server.greedy(prompt(length), 1, TOP)
            out[str(length)] = {str(i): round(p, 5) for i, p in step.items()}
        return out


def main() -> None:
    """Write the file anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=COMMAND, help="command that serves {model} on {port} with {context} tokens")
    parser.add_argument("--only", default="", help="names of models, separated by commas; others keep their figures")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from gguf_models import cases

    figures = json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}
    wanted = set(options.only.split(",")) if options.only else set(cases())
    with tempfile.TemporaryDirectory() as folder:
        for name, gguf in cases().items():
            if name not in wanted:
                continue
            found: dict[str, Any] = {}
            if "longrope" in name:
                found |= ask(gguf, options.server, Path(folder), SHORT_CONTEXT, LENGTHS[:2])
                found |= ask(gguf, options.server, Path(folder), LONG_CONTEXT, LENGTHS[2:])
            else:
                found |= ask(gguf, options.server, Path(folder), LONG_CONTEXT, LENGTHS)
            figures[name] = found
            print(name, next(iter(found["300"].items())), flush=True)
    FIGURES.write_text(json.dumps(figures, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
