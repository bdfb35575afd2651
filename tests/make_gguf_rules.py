"""Makes `tests/frontend/data/gguf_rules.json`: llama.cpp's ids of the probes in tiny files, one for every pre-tokenizer
name and tokenizer model. Run it in the root of the repository, with tests/ and the root on the path, as
`PYTHONPATH=.:tests python tests/make_gguf_rules.py --llama-server BIN-OR-COMMAND`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.gguf_tokens import llama_server, peer_ids
from tiny_gguf import PROBES, tiny_case, write

from inferir.frontend.gguf import gguf_pretokenizers

DATA = Path(__file__).parent / "frontend" / "gguf" / "data" / "gguf_rules.json"


def names() -> list[str]:
    """Every file: `MODEL/PRE`, and what else `tiny_case` knows."""
    return [*(f"gpt2/{name}" for name in gguf_pretokenizers.names()), "gpt2/", "gemma4/", "llama/", "llama/false"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, help="llama.cpp's program, or a command to start it")
    program = parser.parse_args().llama_server
    rows: list[list[list[int]]] = []
    index: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            path = write(Path(folder) / "tiny.gguf", tiny_case(name))
            with llama_server(path, program) as server:
                ids = [peer_ids(server, text, parse_special=True, add_special=True) for text in PROBES]
            if ids not in rows:
                rows.append(ids)
            index[name] = rows.index(ids)
            print(name, index[name], flush=True)
    DATA.write_text(json.dumps({"names": index, "ids": rows}, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
