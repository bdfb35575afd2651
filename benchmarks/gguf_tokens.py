"""Token ids of a GGUF file's texts, ours and llama.cpp's: `python -m benchmarks.gguf_tokens MODEL.gguf --llama-server
URL-OR-BIN`. Exits with 1 if any text has other ids.

Each text is tokenized with special tokens read as such and as plain text. `--save FILE` keeps llama.cpp's ids of the
texts, which the tests compare with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers

from benchmarks import processes
from benchmarks.server_process import free_port
from benchmarks.token_texts import texts

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def llama_server(model: Path, where: str) -> Iterator[str]:
    """The address of a llama.cpp server: `where` itself if it is one, else of the program, started with the model."""
    if where.startswith("http"):
        yield where.rstrip("/")
        return
    port = free_port()
    line = [where, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "512", "-ngl", "0"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"{where} ended with code {process.returncode}")
            with contextlib.suppress(OSError), _OPENER.open(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        processes.end(process)


def peer_ids(url: str, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
    """llama.cpp's ids of a text."""
    body = {"content": text, "parse_special": parse_special, "add_special": add_special}
    request = urllib.request.Request(f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with _OPENER.open(request, timeout=60) as answer:
        ids: list[int] = json.load(answer)["tokens"]
    return ids


def own_tokenizer(model: Path) -> tokenizers.Tokenizer:
    """The tokenizer that a compile of the file writes."""
    from inferir.frontend.gguf_tokenizer import export

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


def compare(url: str, tokenizer: tokenizers.Tokenizer, samples: Sequence[str]) -> list[str]:
    """A line per text and way of reading it that gives other ids."""
    out = []
    for text in samples:
        for parse in (True, False):
            own, peer = own_ids(tokenizer, text, parse_special=parse), peer_ids(url, text, parse_special=parse)
            if own != peer:
                out.append(f"parse_special={parse} {text!r}\n  ours  {own}\n  peer  {peer}")
    for text in samples[:20]:
        own = own_ids(tokenizer, text, parse_special=True, add_special=True)
        if own != (peer := peer_ids(url, text, parse_special=True, add_special=True)):
            out.append(f"add_special {text!r}\n  ours  {own}\n  peer  {peer}")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--llama-server", required=True, help="address of a running server, or the program")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="write llama.cpp's ids of the texts to this file")
    options = parser.parse_args(arguments)
    tokenizer = own_tokenizer(options.model)
    samples = texts(options.texts, special_tokens(tokenizer), options.seed)
    with llama_server(options.model, options.llama_server) as url:
        differing = compare(url, tokenizer, samples)
        if options.save:
            rows = [[peer_ids(url, text, parse_special=parse) for text in samples] for parse in (True, False)]
            options.save.write_text(json.dumps({"special": rows[0], "plain": rows[1]}, separators=(",", ":")) + "\n")
    print("\n".join(differing[:20]), end="\n" if differing else "", file=sys.stderr)
    print(f"{options.model.name}: {len(samples)} texts, read in two ways; {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
