"""Export a model's tokenizer, chat templates and generation defaults, so that serving needs only `tokenizers` and
jinja2.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from inferir.frontend.checkpoint.model_files import optional_json
from inferir.frontend.checkpoint.model_name import readable
from inferir.frontend.facts import token_ids
from inferir.frontend.gguf import gguf_tokenizer
from inferir.frontend.gguf.gguf_metadata import metadata
from inferir.frontend.source.end_ids import Claim, config_claims, gguf_claims
from inferir.frontend.source.model_source import ModelSource
from inferir.frontend.tokenizer.template_files import folder_templates, write_templates
from inferir.frontend.tokenizer.tokenizers_library import names_token, parse, write_config
from inferir.ir.contract.manifest import Decision

COPIED = ("added_tokens.json", "generation_config.json")
DROPPED = ("chat_template", "name_or_path", "tokenizer_file")


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """size: one more than the largest id that has text (a model's vocabulary may be padded beyond it). added: every
    added token and its id; control: those that are special. claims: who says what ends a text. warnings: what was said
    when the tokenizer was exported.
    """

    size: int
    added: dict[str, int] = {}
    control: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()


def export_tokenizer(source: ModelSource, dest: Path) -> TokenizerFacts:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json, the chat templates (if any) and
    generation_config.json.

    A folder's own tokenizer.json is copied byte for byte where transformers makes nothing else of the folder; another
    or a slow one is converted, and that of a GGUF file is made from its metadata. Raises `FrontendError` naming the
    file that is missing or damaged.
    """
    dest.mkdir(parents=True, exist_ok=True)
    claims, decisions = _from_folder(source, dest) if source.kind == "folder" else _from_gguf(source, dest)
    generation = dest / "generation_config.json"
    if not generation.exists():
        generation.write_text(json.dumps(_defaults(source), indent=1) + "\n", encoding="utf-8")
    tokenizer = parse(dest / "tokenizer.json")
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    return TokenizerFacts(
        size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        added={token.content: number for number, token in added},
        control=tuple(token.content for _, token in added if token.special),
        claims=claims,
        decisions=decisions,
    )


def _from_folder(source: ModelSource, dest: Path) -> tuple[tuple[Claim, ...], tuple[Decision, ...]]:
    """Write all files but the generation defaults; who says what ends a text, and what decided the files."""
    from inferir.frontend.source.folder_tokenizer import FolderTokenizer

    templates = folder_templates(source.path, optional_json(source.path / "tokenizer_config.json"))
    tokenizer = FolderTokenizer(source)
    tokenizer.check()
    claims = config_claims(source.generation_config, source.stated_config)
    for name in COPIED:
        if (source.path / name).is_file():
            shutil.copyfile(source.path / name, dest / name)
    stated = {k: v for k, v in tokenizer.config.items() if k not in DROPPED and v is not None}
    kept = {k: v for k, v in stated.items() if not names_token(k, v)}
    write_config(dest, {**kept, **tokenizer.special_tokens()})
    made = tokenizer.write(dest)
    return (*claims, *tokenizer.claims()), (made, *write_templates(templates, dest))


def _from_gguf(source: ModelSource, dest: Path) -> tuple[tuple[Claim, ...], tuple[Decision, ...]]:
    templates = gguf_tokenizer.export(source.path, dest)
    decided = (*gguf_tokenizer.decisions(source.path), *write_templates(templates, dest))
    return gguf_claims(metadata(source.path), readable(source.path.name)), decided


def _defaults(source: ModelSource) -> dict[str, Any]:
    """Generation defaults of a model without generation_config.json."""
    config = source.config.get_text_config(decoder=True)
    out: dict[str, Any] = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = token_ids(source.generation_config.get(key), getattr(config, key, None))
        if ids:
            out[key] = list(ids) if key == "eos_token_id" and len(ids) > 1 else ids[0]
    return {**source.generation_config, **out}
