"""Faults of model folders, made from a seed: files renamed, doubled, truncated, emptied, contradicting each other.

`python tests/folder_faults.py COUNT` tries that many and prints what came of them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**70, 0.5, -0.0, float("nan"), float("inf"), "", "x", "../x", "\u0000", "5",
    [], [1], ["x"], [None], {}, {"x": 1}, {"content": "x"}, [[[]]], "<s>", "float32", "llama",
    "\ud800", ["\ud800"],
)  # fmt: skip
FILE_FAULTS = (
    "remove", "rename", "swap", "copy", "truncate", "empty", "append", "folder", "loop", "dangling", "bom", "utf16",
    "latin", "nested", "pipe", "garbage", "flip",
)  # fmt: skip
SECONDS = 60
_REFUSES = "transformers refuses"


def write_whole(folder: Path, sharded: bool) -> None:
    """A tiny Llama with every file that a folder may have."""
    import torch
    import transformers
    from tiny_tokenizers import byte_level

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 266}
    config = transformers.LlamaConfig(
        **sizes,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=260,
        eos_token_id=261,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="20KB" if sharded else "1GB")
    byte_level().save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    stated = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "added_tokens_decoder": {"264": {"content": "<|a|>", **flags}},
        "extra_special_tokens": ["<|b|>"],
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        "model_max_length": 64,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>", **flags}}))
    (folder / "added_tokens.json").write_text(json.dumps({"<|b|>": 265}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}{{ messages[0].content }}")


def files_of(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and not f.is_symlink())


def break_file(folder: Path, rng: random.Random) -> str:
    """A fault of one file or of two."""
    file = rng.choice(files_of(folder))
    other = rng.choice(files_of(folder))
    name = file.relative_to(folder)
    kind = rng.choice(FILE_FAULTS)
    raw = file.read_bytes()
    if kind == "rename":
        file.rename(
            folder / rng.choice(["x.json", f"old-{file.name}", file.name.upper(), "a.safetensors", SINGLE, INDEX])
        )
    elif kind == "swap":
        there = other.read_bytes()
        other.write_bytes(raw)
        file.write_bytes(there)
        return f"swap {name} and {other.relative_to(folder)}"
    elif kind == "copy":
        shutil.copy(
            file, folder / rng.choice([SINGLE, INDEX, "model-00001-of-00002.safetensors", *JSON_FILES, "b.safetensors"])
        )
    elif kind == "truncate":
        file.write_bytes(raw[: rng.randrange(len(raw) + 1)])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "append":
        file.write_bytes(raw + rng.choice([b"x", b"\n", raw, b"\x00" * 8]))
    elif kind == "bom":
        file.write_bytes(b"\xef\xbb\xbf" + raw)
    elif kind == "utf16":
        file.write_bytes(raw.decode("utf-8", "replace").encode("utf-16"))
    elif kind == "latin":
        file.write_bytes(raw[: len(raw) // 2] + b"\xe9" + raw[len(raw) // 2 :])
    elif kind == "nested":
        file.write_bytes(b'{"a":' * 20_000 + b"1" + b"}" * 20_000)
    elif kind == "garbage":
        file.write_bytes(rng.randbytes(64))
    elif kind == "flip":
        place = rng.randrange(min(len(raw), 4096))
        file.write_bytes(raw[:place] + bytes([raw[place] ^ (1 << rng.randrange(8))]) + raw[place + 1 :])
    else:
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "loop":
            file.symlink_to(file.name)
        elif kind == "dangling":
            file.symlink_to("nowhere")
        elif kind == "pipe":
            os.mkfifo(file)
    return f"{kind} {name}"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all entries of a JSON value, of long lists and objects the first eight only."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items[:40] if not path else items[:8]:
        yield (*path, key)
        yield from places(item, (*path, key))


def break_json(folder: Path, rng: random.Random) -> str:
    """Another value, no value, or another name at any place of a JSON file."""
    file = rng.choice([f for f in files_of(folder) if f.suffix == ".json"])
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return f"nothing more in {file.name}"
    if rng.random() < 0.05 or not isinstance(value, dict) or not value:
        new = rng.choice(VALUES)
        file.write_text(json.dumps(new))
        return f"{file.name} is {new!r}"
    *way, key = rng.choice(list(places(value)))
    inner = value
    for step in way:
        inner = inner[step]
    where = f"{file.name}: {'.'.join(map(str, [*way, key]))}"
    kind = rng.choice(["set", "set", "set", "remove", "rename"])
    if kind == "set":
        inner[key] = rng.choice(VALUES)
        where += f" is {inner[key]!r}"
    elif kind == "remove":
        del inner[key]
        where += " removed"
    elif isinstance(inner, dict):
        inner[f"{key}x"] = inner.pop(key)
        where += " renamed"
    file.write_text(json.dumps(value))
    return where


def break_header(folder: Path, rng: random.Random) -> str:
    """Another value at any place of the header of a safetensors file."""
    files = [f for f in files_of(folder) if f.suffix == ".safetensors"]
    raw = rng.choice(files).read_bytes() if files else b""
    if not files or len(raw) < 8:
        return "no weights"
    file = rng.choice(files)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + length])
        way = rng.choice(list(places(header)))
    except (ValueError, IndexError, RecursionError):
        return f"nothing more in {file.name}"
    inner = header
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = rng.choice([*VALUES, "F16", "BF16", "F8_E4M3", [16, 16], [0, 0], [0, 64], 64])
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    return f"header of {file.name}: {'.'.join(map(str, way))} is {inner[way[-1]]!r}"


FAULTS: tuple[Callable[[Path, random.Random], str], ...] = (
    break_file,
    break_file,
    break_json,
    break_json,
    break_json,
    break_header,
)


def break_folder(folder: Path, seed: int) -> str:
    """Make the one or two faults of a seed; returns what was done."""
    rng = random.Random(seed)
    done = []
    for _ in range(1 if rng.random() < 0.7 else 2):
        try:
            done.append(rng.choice(FAULTS)(folder, rng))
        except OSError as error:  # the first fault may leave nothing that the second could be made to
            done.append(f"nothing more ({error.strerror})")
    return "; ".join(done)


def read_all(folder: Path, dest: Path) -> dict[str, Any]:
    """Everything a compile reads of a folder but the trace: the account of weights, tokenizer, ends, decisions.

    Returns the tensors under the model's names. Raises whatever it raises.
    """
    import torch

    from inferir.compile.text_ends import check_vocabulary, join_ends
    from inferir.frontend.capture import hooks
    from inferir.frontend.capture.trace import expected_weights
    from inferir.frontend.checkpoint.checkpoint_weights import resolve
    from inferir.frontend.checkpoint.huggingface import skeleton, text_config
    from inferir.frontend.facts import ModelFacts
    from inferir.frontend.source.decisions import decisions
    from inferir.frontend.source.export_tokenizer import export_tokenizer
    from inferir.frontend.source.model_source import load_source
    from inferir.ir.graph.dtypes import DType, torch_dtype
    from inferir.runtime.sampling.sampling_defaults import SamplingDefaults

    source = load_source(str(folder))
    hooks.register()
    source.description_digest(), source.tokenizer_digest()
    model = skeleton(source.config, torch_dtype(source.dtype))
    names = resolve(source.weights, expected_weights(model))
    tensors = {name: source.weights.load(stored) for name, stored in names.items()}
    source.weights.fingerprint()
    tokenizer = export_tokenizer(source, dest)
    SamplingDefaults.load(dest, "auto")
    part = text_config(source.config)
    facts = ModelFacts(
        name=source.name, architectures=(), model_type="", dtype=DType.F32, vocab_size=int(part.vocab_size),
        hidden_size=1, layers=(), max_position_embeddings=0, position_limit=0, length_dependent=False,
        eos_token_ids=(), bos_token_id=None, pad_token_id=None, parameters=0, tie_word_embeddings=False,
    )  # fmt: skip
    check_vocabulary(facts, tokenizer)
    join_ends(facts, tokenizer, {f.name: f.read_bytes() for f in dest.iterdir()})
    decisions(source, "auto")
    assert all(torch.is_tensor(t) for t in tensors.values())
    return tensors


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def same_as_transformers(folder: Path, dest: Path, tensors: dict[str, Any]) -> str:
    """ "" if transformers reads the same weights and the same ids, else what differs."""
    import torch

    from inferir.frontend.checkpoint.huggingface import api, quiet
    from inferir.runtime.text.tokenizer import Tokenizer

    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = api().auto_model.from_pretrained(str(folder), dtype=torch.float32)
            theirs = api().auto_tokenizer.from_pretrained(str(folder))
            ids = theirs.encode("a<|a|> <|b|>\n</s>12")
    except Exception as error:
        return f"{_REFUSES}: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    state = model.state_dict()
    far = [n for n, t in tensors.items() if n in state and not torch.equal(state[n].float(), t.float())]
    if far:
        return f"tensor {far[0]} differs"
    if Tokenizer.load(dest).encode("a<|a|> <|b|>\n</s>12") != ids:
        return "ids differ"
    return ""


def outcome(whole: Path, seed: int, work: Path) -> tuple[str, str, str]:
    """(what came of it, the fault, the message).

    "read": as transformers reads it; "refused": one typed line; "lenient": read as without the fault, which stands in
    something that only transformers looks at; "differs" from transformers; "wrong": another exception.
    """
    from inferir.ir.errors import InferirError

    folder, dest = work / "model", work / "out"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(whole, folder)
    fault = break_folder(folder, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with time_limit(SECONDS):
                tensors = read_all(folder, dest)
                difference = same_as_transformers(folder, dest, tensors)
                lenient = difference.startswith(_REFUSES) and not same_as_transformers(whole, dest, tensors)
        except InferirError as error:
            text = str(error)
            good = text and "\n" not in text and len(text) < 1000
            return ("refused" if good else "wrong"), fault, text
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # panics of Rust code too
            return "wrong", fault, f"{type(error).__name__}: {error}"
    return ("lenient" if lenient else "differs" if difference else "read"), fault, difference


def main() -> None:
    first, count = (int(sys.argv[2]) if len(sys.argv) > 2 else 0), int(sys.argv[1])
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for kind in ("whole", "sharded"):
            write_whole(Path(name) / kind, kind == "sharded")
        for seed in range(first, first + count):
            whole = Path(name) / ("sharded" if seed % 3 == 2 else "whole")
            result, fault, message = outcome(whole, seed, Path(name) / "work")
            found[result] += 1
            if result in ("wrong", "differs") or "-v" in sys.argv:
                print(f"{seed}: {result}: {fault}: {message}", flush=True)
    print(dict(found))


if __name__ == "__main__":
    main()
