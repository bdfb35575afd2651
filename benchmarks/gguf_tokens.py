"""Token ids of a GGUF file's texts, ours and llama.cpp's: `python -m benchmarks.gguf_tokens MODEL.gguf --llama-server
URL-OR-BIN`. Exits with 1 if any text has other ids.

Each text is tokenized with special tokens read as such and as plain text. `--save FILE` keeps llama.cpp's ids of the
texts, which the tests compare with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers

from benchmarks.llama_server import LlamaServer, serving
from benchmarks.token_texts import texts


@contextlib.contextmanager
def llama_server(model: Path, where: str) -> Iterator[LlamaServer]:
    """A llama.cpp server: that of an address, else of one started with the model, by a program or a command."""
    if where.startswith("http"):
        yield LlamaServer(where)
        return
    command = where if "{model}" in where else f"{where} -m {{model}} --port {{port}} -c {{context}}"
    with serving(model, command, context=512) as server:
        yield server


def peer_ids(server: LlamaServer, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
    """llama.cpp's ids of a text."""
    body = {"content": text, "parse_special": parse_special, "add_special": add_special}
    ids: list[int] = server.post("/tokenize", body)["tokens"]
    return ids


def own_tokenizer(model: Path) -> tokenizers.Tokenizer:
    """The tokenizer that a compile of the file writes."""
    from inferir.frontend.gguf.gguf_tokenizer import export

    with tempfile.TemporaryDirectory() as folder:
        export(model, Path(folder))
        return tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def own_ids(tokenizer: tokenizers.Tokenizer, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
    """Our ids of a text."""
    tokenizer.encode_special_tokens = not parse_special
    ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
    return ids


def special_tokens(tokenizer: tokenizers.Tokenizer, most: int = 40) -> list[str]:
    """Some tokens that are cut out of texts, by id."""
    found = sorted(tokenizer.get_added_tokens_decoder().items())
    return [token.content for _, token in found[:: max(1, len(found) // most)]]


def compare(server: LlamaServer, tokenizer: tokenizers.Tokenizer, samples: Sequence[str]) -> list[str]:
    """A line per text and way of reading it that gives other ids."""
    out = []
    for text in samples:
        for parse in (True, False):
            own, peer = own_ids(tokenizer, text, parse_special=parse), peer_ids(server, text, parse_special=parse)
            if own != peer:
                out.append(f"parse_special={parse} {text!r}\n  ours  {own}\n  peer  {peer}")
    for text in samples[:20]:
        own = own_ids(tokenizer, text, parse_special=True, add_special=True)
        if own != (peer := peer_ids(server, text, parse_special=True, add_special=True)):
            out.append(f"add_special {text!r}\n  ours  {own}\n  peer  {peer}")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument(
        "--llama-server",
        required=True,
        help="address of a running server, the program, or a command with {model}, {port} and {context}",
    )
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="write llama.cpp's ids of the texts to this file")
    options = parser.parse_args(arguments)
    tokenizer = own_tokenizer(options.model)
    samples = texts(options.texts, special_tokens(tokenizer), options.seed)
    with llama_server(options.model, options.llama_server) as server:
        differing = compare(server, tokenizer, samples)
        if options.save:
            rows = [[peer_ids(server, text, parse_special=parse) for text in samples] for parse in (True, False)]
            options.save.write_text(json.dumps({"special": rows[0], "plain": rows[1]}, separators=(",", ":")) + "\n")
    print("\n".join(differing[:20]), end="\n" if differing else "", file=sys.stderr)
    print(f"{options.model.name}: {len(samples)} texts, read in two ways; {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
