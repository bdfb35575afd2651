"""The tokenizer of a GGUF file, written in the form of the `tokenizers` library from the file's own metadata.

The published rules of the models decide, and llama.cpp's where a file says no more than a name. A tokenizer model or
pre-tokenizer that is not known to be right is refused by name.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.model_name import readable
from inferir.frontend.gguf.gguf_bpe import bpe
from inferir.frontend.gguf.gguf_metadata import metadata
from inferir.frontend.gguf.gguf_pretokenizers import PRE
from inferir.frontend.gguf.gguf_spm import ADD_SPACE, spm
from inferir.frontend.gguf.gguf_vocabulary import (
    CONTROL,
    ID_KEYS,
    MODEL,
    NAMED_TEMPLATE,
    TEMPLATE,
    TEMPLATES,
    TOKENS,
    UNKNOWN,
    Vocabulary,
    added_tokens,
    control_ids,
    flag,
    text,
    texts,
    unaccounted,
    vocabulary,
)
from inferir.frontend.tokenizer.template_files import DEFAULT, Template, usable
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning, write_config
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError

BOS, EOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"
ADD_BOS, ADD_EOS = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"
SUPPRESSED = "tokenizer.ggml.suppress_tokens"

# What SentencePiece vocabularies have where the file states no id.
_USUAL_IDS = {"tokenizer.ggml.unknown_token_id": 0, BOS: 1, EOS: 2}

_REFUSED = {
    "bert": "WordPiece is a tokenizer of encoders",
    "t5": "unigram vocabularies are not supported",
    "rwkv": "the vocabulary of RWKV is not supported",
    "plamo2": "the vocabulary of PLaMo-2 is not supported",
    "hybriddna": "vocabularies of DNA are not supported",
    "whitespace": "it is a tokenizer of an embedding model",
    "none": "the file holds no tokenizer",
    "no_vocab": "the file holds no tokenizer",
}


def export(path: Path, dest: Path) -> dict[str, Template]:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json into `dest`; the chat templates by name.

    Raises `FrontendError` with one line that names the key of the file that is missing, broken or not supported; warns
    (`TokenizerWarning`) of what is odd.
    """
    stated = metadata(path)
    try:
        tokenizer, config, odd = _documents(stated)
        templates = _templates(stated, readable(path.name))
    except FrontendError as error:
        raise FrontendError(f"{readable(path.name)}: {error}") from None
    odd += [f"the key {key} is not known and has no effect" for key in unaccounted(stated)]
    for message in odd:
        warnings.warn(f"{readable(path.name)}: {message}", TokenizerWarning, stacklevel=2)
    content = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (dest / "tokenizer.json").write_text(content, encoding="utf-8")
    write_config(dest, config)
    return templates


def decisions(path: Path) -> tuple[Decision, ...]:
    """What decides how a text becomes tokens, and the key that says so."""
    stated = metadata(path)
    found = {"tokenizer": MODEL, "pre-tokenizer": PRE, "start token": BOS}
    found |= {"start token is added": ADD_BOS, "end token is added": ADD_EOS, "blank before a text": ADD_SPACE}
    out = []
    for subject, key in found.items():
        unread = PRE if stated.get(MODEL) == "llama" else ADD_SPACE
        if key in stated and key != unread:
            shown = f"{stated[key]} ({stated[TOKENS][stated[key]]})" if key == BOS else str(stated[key])
            out.append(Decision(subject=subject, value=shown, source=f"{readable(path.name)}: {key}"))
    return tuple(out)


def _documents(stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """tokenizer.json, tokenizer_config.json, and warnings."""
    kind = text(stated, MODEL)
    if kind not in ("gpt2", "gemma4", "llama"):
        if kind is None:
            raise FrontendError(f"{MODEL}: the file lacks this key, so its tokenizer cannot be read")
        reason = _REFUSED.get(kind, "it is not known")
        raise FrontendError(f"{MODEL}: the tokenizer model {kind!r} is not supported: {reason}")
    known = vocabulary(stated)
    control, mistyped = control_ids(known)
    odd = [f"token {token!r} is not of type control, but taken for a control token" for token in mistyped]
    if kind == "llama":
        parts, more = spm(stated, known, control)
        add_bos, force = True, False
    else:
        parts, split, more = bpe(stated, known)
        add_bos, force = split.add_bos, split.force_bos
    odd += more
    special = dict(known.special)
    if kind == "llama":
        usual = {key: i for key, i in _USUAL_IDS.items() if key not in special and i < len(known.tokens)}
        special |= {key: i for key, i in usual.items() if known.kinds[i] in (CONTROL, UNKNOWN)}
    flags = {"add_bos_token": flag(stated, ADD_BOS, add_bos), "add_eos_token": flag(stated, ADD_EOS, False)}
    if force and not flags["add_bos_token"]:
        if ADD_BOS in stated:
            odd.append(f"{ADD_BOS} is not true, but tokenizers of this kind always add a start token")
        flags["add_bos_token"] = True
    if stated.get(SUPPRESSED):
        odd.append(f"{SUPPRESSED}: not obeyed; these tokens can be generated")
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(known, control, stated),
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _frame(known, special, flags),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }
    named = {name: known.tokens[special[key]] for key, name in ID_KEYS.items() if name is not None and key in special}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        **flags,
        "clean_up_tokenization_spaces": False,
    }
    return tokenizer, config, odd


def _frame(known: Vocabulary, special: Mapping[str, int], flags: Mapping[str, bool]) -> dict[str, Any] | None:
    """The post-processor that puts start and end token around a text."""
    items: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    entries = {}
    for place, key, wanted in (("before", BOS, "add_bos_token"), ("after", EOS, "add_eos_token")):
        if not flags[wanted]:
            continue
        if key not in special:
            raise FrontendError(f"{key}: the file lacks this key, but the token is added to every text ({wanted})")
        token = known.tokens[special[key]]
        items[place].append({"SpecialToken": {"id": token, "type_id": 0}})
        entries[token] = {"id": token, "ids": [special[key]], "tokens": [token]}
    if not entries:
        return None

    def framed(name: str, type_id: int) -> list[dict[str, Any]]:
        return [*items["before"], {"Sequence": {"id": name, "type_id": type_id}}, *items["after"]]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": [*framed("A", 0), *framed("B", 1)],
        "special_tokens": entries,
    }


def _templates(stated: Mapping[str, Any], file: str) -> dict[str, Template]:
    """Chat templates by name. The list of names is only an index of the keys."""
    found: dict[str, Template] = {}
    for key in stated:
        if key != TEMPLATE and not key.startswith(NAMED_TEMPLATE):
            continue
        name = DEFAULT if key == TEMPLATE else key.removeprefix(NAMED_TEMPLATE)
        template = Template(text=text(stated, key) or "", source=f"{file}: {key}")
        if key == TEMPLATE or name not in found:
            found[name] = template
    missing = sorted(set(texts(stated, TEMPLATES)) - set(found))
    if missing:
        raise FrontendError(f"{TEMPLATES} names {missing[0]!r}, but there is no {NAMED_TEMPLATE}{missing[0]}")
    return usable(found)
