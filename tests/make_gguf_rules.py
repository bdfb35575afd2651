"""Makes `tests/frontend/data/gguf_rules.json`: llama.cpp's ids of the probes in tiny files, one for every pre-tokenizer
name and tokenizer model. Run it in the root of the repository, with tests/ and the root on the path, as
`PYTHONPATH=.:tests python tests/make_gguf_rules.py --llama-server BIN`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.gguf_tokens import llama_server, peer_ids
from tiny_gguf import PROBES, Tiny, byte_level, sentence_piece, text_level, write

from inferir.frontend import gguf_pretokenizers

DATA = Path(__file__).parent / "frontend" / "data" / "gguf_rules.json"


def cases() -> dict[str, Tiny]:
    """Files by name: `MODEL/PRE`, or `llama/` with the value of add_space_prefix."""
    out: dict[str, Tiny] = {}
    for name in gguf_pretokenizers.names():
        plain = gguf_pretokenizers.rule(name).plain
        out[f"gpt2/{name}"] = text_level("gpt2", name) if plain else byte_level(name)
    out["gpt2/"] = byte_level(None)
    out["gemma4/"] = text_level("gemma4", None)
    out["llama/"] = sentence_piece()
    out["llama/false"] = sentence_piece(**{"tokenizer.ggml.add_space_prefix": False})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", required=True, help="llama.cpp's program")
    program = parser.parse_args().llama_server
    rows: list[list[list[int]]] = []
    names: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, tiny in cases().items():
            path = write(Path(folder) / "tiny.gguf", tiny)
            with llama_server(path, program) as url:
                ids = [peer_ids(url, text, parse_special=True, add_special=True) for text in PROBES]
            if ids not in rows:
                rows.append(ids)
            names[name] = rows.index(ids)
            print(name, names[name], flush=True)
    DATA.write_text(json.dumps({"names": names, "ids": rows}, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
