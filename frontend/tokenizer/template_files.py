"""The chat templates of a model folder, all of them, and where each was found.

As transformers' tokenizers look for them: `chat_template.jinja` and `additional_chat_templates/NAME.jinja`, else
`chat_template` in tokenizer_config.json, a text or a list of named ones. A folder that has neither may have
chat_template.json, which processors read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferir.frontend.checkpoint.model_files import optional_json, read_text, there
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError

DEFAULT = "default"
MAIN_FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
JSON_FILE = "chat_template.json"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class TemplateWarning(UserWarning):
    """A chat template cannot be used; the message names its file."""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A template's text and its file, with the key where it is one of several things in there."""

    text: str
    source: str


class _Named(msgspec.Struct, frozen=True):
    """An entry of `chat_template` in tokenizer_config.json where that is a list."""

    name: str
    template: str


def template_file(name: str) -> str:
    """The file that holds the template `name` in an artifact's tokenizer folder."""
    return MAIN_FILE if name == DEFAULT else f"chat_template.{name}.jinja"


def folder_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, Template]:
    """Templates by name. Raises `FrontendError` naming a file that cannot be read or holds something else."""
    found: dict[str, Template] = {}
    if there(folder / MAIN_FILE):
        found[DEFAULT] = Template(text=read_text(folder / MAIN_FILE), source=MAIN_FILE)
    if (folder / FOLDER).is_dir():
        for file in sorted((folder / FOLDER).glob("*.jinja")):
            found[file.stem] = Template(text=read_text(file), source=f"{FOLDER}/{file.name}")
    if DEFAULT not in found:
        # A folder with additional templates only leaves transformers without a default; the config's is meant.
        in_config = stated_templates(tokenizer_config.get("chat_template"), "tokenizer_config.json: chat_template")
        found = {**in_config, **found}
    if not found:
        stated = optional_json(folder / JSON_FILE).get("chat_template")
        found = stated_templates(stated, f"{JSON_FILE}: chat_template")
    return usable(found)


def stated_templates(value: Any, source: str) -> dict[str, Template]:
    """Templates of a JSON value: a text, or a list of objects with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: Template(text=value, source=source)}
    if isinstance(value, Mapping):  # as transformers holds them in memory
        value = [{"name": name, "template": text} for name, text in value.items()]
    try:
        named = msgspec.convert(value, list[_Named])
    except msgspec.ValidationError as error:
        raise FrontendError(f"{source} is neither a text nor a list of objects with a name and a template") from error
    return {item.name: Template(text=item.template, source=f"{source}[{item.name}]") for item in named}


def write_templates(templates: Mapping[str, Template], dest: Path) -> tuple[Decision, ...]:
    """Write each template to the file of its name; the decisions say where they come from."""
    for name, template in templates.items():
        (dest / template_file(name)).write_text(template.text, encoding="utf-8", newline="")
    return tuple(
        Decision(subject="chat template", value=name, source=template.source) for name, template in templates.items()
    )


def usable(found: Mapping[str, Template]) -> dict[str, Template]:
    """The templates that can be written; warns (`TemplateWarning`) of the others."""
    out = {}
    for name, template in found.items():
        if not _NAME.fullmatch(name):
            _warn(
                f"{template.source}: the chat template {name!r} is left out; a name has letters, digits, _ and - only"
            )
        elif not template.text.strip():
            _warn(f"{template.source}: the chat template is empty and left out")
        else:
            out[name] = template
    return out


def _warn(message: str) -> None:
    warnings.warn(message, TemplateWarning, stacklevel=4)
