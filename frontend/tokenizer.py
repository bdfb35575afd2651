"""Export a model's tokenizer, chat template and generation defaults, so that serving needs only `tokenizers` and
jinja2.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from inferir.frontend.facts import token_ids
from inferir.frontend.model import ModelSource, read_json
from inferir.ir.errors import FrontendError

COPIED = ("special_tokens_map.json", "added_tokens.json", "generation_config.json", "chat_template.json")


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """size: one more than the largest id that has text (a model's vocabulary may be padded beyond it). Ids of special
    tokens.
    """

    size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    has_chat_template: bool


def export_tokenizer(source: ModelSource, dest: Path) -> TokenizerFacts:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja (if any) and
    generation_config.json.

    A folder's own tokenizer.json is copied byte for byte; a slow or GGUF tokenizer is converted. Raises
    `FrontendError` naming the file that is missing or damaged.
    """
    dest.mkdir(parents=True, exist_ok=True)
    if source.kind == "folder" and (source.path / "tokenizer.json").is_file():
        _copy(source.path, dest)
    else:
        _convert(source, dest)
    generation = dest / "generation_config.json"
    if not generation.exists():
        generation.write_text(json.dumps(_defaults(source), indent=1) + "\n", encoding="utf-8")
    return _facts(dest)


def _copy(folder: Path, dest: Path) -> None:
    for name in ("tokenizer.json", *COPIED):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, dest / name)
    config = dict(read_json(folder / "tokenizer_config.json")) if (folder / "tokenizer_config.json").is_file() else {}
    template = _template(folder, config)
    if template is not None:
        (dest / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_config(dest, config)


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """The chat template from where transformers looks for it: its own file, chat_template.json, the tokenizer's
    config.
    """
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    stated: Any = config.get("chat_template")
    if (folder / "chat_template.json").is_file():
        stated = read_json(folder / "chat_template.json").get("chat_template", stated)
    if isinstance(stated, list):  # several named templates
        named = {str(t.get("name")): t.get("template") for t in stated if isinstance(t, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) else None


def _write_config(dest: Path, config: dict[str, Any]) -> None:
    """tokenizer_config.json without the template, and special_tokens_map.json with plain strings."""
    kept = {k: v for k, v in config.items() if k not in ("chat_template", "name_or_path", "tokenizer_file")}
    (dest / "tokenizer_config.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    special = {k: _text(v) for k, v in config.items() if k.endswith("_token") and _text(v) is not None}
    path = dest / "special_tokens_map.json"
    if path.is_file():
        stored = {k: _text(v) for k, v in read_json(path).items() if k.endswith("_token")}
        special = {**{k: v for k, v in stored.items() if v is not None}, **special}
    path.write_text(json.dumps(special, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _convert(source: ModelSource, dest: Path) -> None:
    from inferir.frontend.gguf_file import load_tokenizer
    from inferir.frontend.huggingface import api, one_line, quiet

    if source.kind == "gguf":
        tokenizer = load_tokenizer(source.path)
    else:
        try:
            with quiet():
                tokenizer = api().auto_tokenizer.from_pretrained(
                    str(source.path), use_fast=True, trust_remote_code=source.trust_remote_code
                )
        except Exception as error:  # missing files, unknown classes, failed conversions
            raise FrontendError(
                f"{source.spec} has no tokenizer.json, and its tokenizer cannot be converted: {one_line(error)}"
            ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise FrontendError(f"the tokenizer of {source.spec} ({type(tokenizer).__name__}) has no fast form")
    (dest / "tokenizer.json").write_text(backend.to_str(pretty=False), encoding="utf-8")
    special = {k: _text(v) or str(v) for k, v in tokenizer.special_tokens_map.items() if k.endswith("_token")}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    for flag in ("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces"):
        value = getattr(tokenizer, flag, None)
        if isinstance(value, bool):
            config[flag] = value
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if isinstance(template, str):
        (dest / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_config(dest, config)


def _defaults(source: ModelSource) -> dict[str, Any]:
    """Generation defaults of a model without generation_config.json."""
    config = source.config.get_text_config(decoder=True)
    out: dict[str, Any] = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = token_ids(source.generation_config.get(key), getattr(config, key, None))
        if ids:
            out[key] = list(ids) if key == "eos_token_id" and len(ids) > 1 else ids[0]
    return out


def _facts(dest: Path) -> TokenizerFacts:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(dest / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise FrontendError(f"tokenizer.json cannot be read: {error}") from error
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    special = read_json(dest / "special_tokens_map.json")

    def id_of(key: str) -> int | None:
        token = special.get(key)
        return vocabulary.get(token) if isinstance(token, str) else None

    return TokenizerFacts(
        size=max(vocabulary.values(), default=-1) + 1,
        bos_token_id=id_of("bos_token"),
        eos_token_id=id_of("eos_token"),
        pad_token_id=id_of("pad_token"),
        has_chat_template=(dest / "chat_template.jinja").is_file(),
    )
