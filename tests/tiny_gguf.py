"""Tiny GGUF files with a tokenizer of every kind: a random Llama of one layer whose vocabulary the test chooses."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Texts that tell the rules apart.
PROBES = (
    "a  12",
    "def f():\n    1",
    "- item\n  2. x\n   10) y",
    "   7",
    "x = 1234567 + 89",
    "abc123456 v2.0",
    "it's we'LL I'd DON'T you'Ve 'S",
    "HelloWorld XMLHttpRequest iPhone",
    "don't stop!!! ...wait... (ok) [x] {y}",
    "a_b-c/d\\e|f",
    "tabs\t\there \t1",
    "line\nbreak\r\n\r\nend\n",
    "  two\n\n\n  lines  \n ",
    "trailing   ",
    "    ",
    "\n\n\n\n",
    "nbsp\u00a0here\u00a0\u00a01\u3000x",
    "Größe ÉCOLE naïve ﬁn",
    "Привет, Мир! Ёж",
    "我想在apple工作1314天，好吗？“是”",
    "カタカナひらがな漢字123",
    "한국어 문장입니다 ㄱㄴ",
    "ภาษาไทย ง่ายๆ 12",
    "नमस्ते दुनिया १२३",
    "مرحبا بالعالم ٣٤٥،",
    "שָׁלוֹם",
    "မြန်မာ ខ្មែរ ລາວ",
    "😀👍🏽 👨‍👩‍👧 🇩🇪 ❤️x",
    "x²½Ⅷ①٣ 3rd",
    "$5.00 €7 +1 <=> ^~|`",
    "\ue000private\uf8ff",
    "a\u200bb\u200dc",
    "ctl\x01\x1f\x7fx",
    "«quote» — “dash”…",
    "e\u0301a\u0308 Z\u0351\u036bx",
    "http://a.b/c?d=1&e=%20#f",
    "    if x:\n\t\treturn 0x1F\n\n\n# end",
    "IMGIMGABCZ <sentinel:12>",
    "<<tag>>a <<tag>> b",
    "!!a ##b @@c.d,e;f:g",
)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """What a file says about its tokenizer. keys: further keys with their values."""

    model: str | None
    tokens: Sequence[str]
    types: Sequence[int] | None = None
    scores: Sequence[float] | None = None
    merges: Sequence[str] | None = None
    pre: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)


def write(path: Path, tiny: Tiny) -> Path:
    """Write the file; it has one layer with random weights, so that other programs load it, too."""
    writer = gguf.GGUFWriter(path, "llama")
    width, vocab = 32, max(1, len(tiny.tokens))
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    _write_tokenizer(writer, tiny)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (vocab, width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
    }
    shapes |= {f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (64, width), "blk.0.ffn_up": (64, width), "blk.0.ffn_down": (width, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: Any, tiny: Tiny) -> None:
    if tiny.model is not None:
        writer.add_tokenizer_model(tiny.model)
    if tiny.pre is not None:
        writer.add_tokenizer_pre(tiny.pre)
    if tiny.tokens:
        writer.add_token_list(list(tiny.tokens))
    if tiny.types is not None:
        writer.add_token_types(list(tiny.types))
    if tiny.scores is not None:
        writer.add_token_scores(list(tiny.scores))
    if tiny.merges is not None:
        writer.add_token_merges(list(tiny.merges))
    for key, value in tiny.keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def byte_alphabet() -> list[str]:
    """The character for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found = {byte: chr(byte) for byte in printable}
    found |= {byte: chr(0x100 + i) for i, byte in enumerate(b for b in range(256) if b not in found)}
    return [found[byte] for byte in range(256)]


def learn(texts: Sequence[Sequence[str]], most: int) -> list[tuple[str, str]]:
    """Byte-pair encoding by the book: the most frequent pair first, over texts that are not split at all."""
    rows = [list(text) for text in texts]
    merges: list[tuple[str, str]] = []
    while len(merges) < most:
        counts = Counter(pair for row in rows for pair in itertools.pairwise(row))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        rows = [_merged(row, best) for row in rows]
    return merges


def _merged(row: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(row):
        if tuple(row[at : at + 2]) == pair:
            out.append(row[at] + row[at + 1])
            at += 2
        else:
            out.append(row[at])
            at += 1
    return out


MARKS = ("<|bos|>", "<|eos|>", "<|im_end|>", "<<tag>>")
MARK_TYPES = (CONTROL, CONTROL, CONTROL, USER_DEFINED)
IDS = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}


@functools.cache
def _byte_level() -> tuple[list[str], list[str]]:
    alphabet = byte_alphabet()
    merges = learn([[alphabet[byte] for byte in text.encode()] for text in PROBES], 900)
    tokens = [*MARKS, *alphabet]
    tokens += [token for token in dict.fromkeys(a + b for a, b in merges) if token not in tokens]
    return tokens, [f"{a} {b}" for a, b in merges]


def byte_level(pre: str | None, **keys: Any) -> Tiny:
    """Byte-level BPE whose merges would make one token of most probes, if the text were not split."""
    tokens, merges = _byte_level()
    types = [*MARK_TYPES, *[NORMAL] * (len(tokens) - len(MARKS))]
    return Tiny(model="gpt2", pre=pre, tokens=tokens, types=types, merges=merges, keys={**IDS, **keys})


@functools.cache
def _pieces() -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Control tokens and bytes, characters (but a few), and merges over whole texts with stand-ins for blanks."""
    rows = ["▁" + text.replace(" ", "▁") for text in PROBES]
    characters = sorted({c for row in rows for c in row if c not in "ɣ😀国€\x7f"})
    merges = learn([[c for c in row if c in characters] for row in rows], 700)
    first = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "<<tag>>"]
    return first, characters, merges


def sentence_piece(**keys: Any) -> Tiny:
    """SentencePiece's kind: a score per token, the earlier merged the higher."""
    first, characters, merges = _pieces()
    made = list(dict.fromkeys(a + b for a, b in merges))
    tokens = [*first, *characters, *made]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, *[NORMAL] * (len(characters) + len(made))]
    scores = [0.0] * (len(first) - 1) + [-1000.0] + [-2000.0 - i for i in range(len(characters))]
    scores += [-1.0 - i for i in range(len(made))]
    stated = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
    return Tiny(model="llama", pre="default", tokens=tokens, types=types, scores=scores, keys={**stated, **keys})


def text_level(model: str, pre: str | None, **keys: Any) -> Tiny:
    """BPE over text with stand-ins for blanks and tokens for bytes, with listed merges."""
    first, characters, merges = _pieces()
    tokens = [*first, *characters, *dict.fromkeys(a + b for a, b in merges)]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, *[NORMAL] * (len(tokens) - len(first))]
    stated = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    return Tiny(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=[f"{a} {b}" for a, b in merges],
        keys={**stated, **keys},
    )


# Pre-tokenizer names whose tokenizers merge text instead of bytes.
TEXT_LEVEL = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")


def tiny_case(name: str) -> Tiny:
    """The file called `MODEL/PRE`; behind "llama/" stands a value of add_space_prefix."""
    model, rest = name.split("/")
    if model == "llama":
        return sentence_piece(**({"tokenizer.ggml.add_space_prefix": rest == "true"} if rest else {}))
    if model == "gemma4" or rest in TEXT_LEVEL:
        return text_level(model, rest or None)
    return byte_level(rest or None)
