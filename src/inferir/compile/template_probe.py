"""What a chat template writes at the end of an assistant's message, and whether it works at all.

A model that was trained on the template's output ends its turn with that token, whatever else its files name.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from inferir.frontend.tokenizer.template_files import DEFAULT, TemplateWarning, template_file
from inferir.ir.errors import InferirError
from inferir.ir.system.held_folder import scratch_folder
from inferir.runtime.text.chat_template import ChatTemplate

_SYSTEM, _USER, _ASSISTANT, _NEXT = "Qsystemq", "Quserq", "Qassistantq", "Qnextq"


def probe_templates(files: Mapping[str, bytes], sources: Mapping[str, str], control: Collection[str]) -> dict[str, str]:
    """Render every template of a tokenizer folder once: name -> the control token that ends an assistant's turn.

    files: the folder's content; sources: template -> where it came from, for messages. control: the special tokens. A
    template that cannot be compiled, or that renders no conversation, is warned about; one that ends a turn without a
    control token is left out.
    """
    out = {}
    with scratch_folder("template") as scratch:
        folder = scratch.path
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            if file in files:
                (folder / file).write_bytes(files[file])
        for template_name, source in sources.items():
            text = files[template_file(template_name)].decode("utf-8", "replace")
            found = _probe(text, folder, template_name, source, control)
            if found is not None:
                out[template_name] = found
    return out


def _probe(text: str, folder: Path, name: str, source: str, control: Collection[str]) -> str | None:
    try:
        template = ChatTemplate.from_source(text, folder)
    except InferirError as error:
        _warn(f"{source}: the chat template {name!r} cannot be compiled, chat will be refused: {error}")
        return None
    if name == DEFAULT:
        try:
            template.render([{"role": "user", "content": _USER}], add_generation_prompt=True)
        except InferirError as error:
            _warn(f"{source}: the chat template refuses a single message of a user: {error}")
    return turn_end(template, control)


def turn_end(template: ChatTemplate, control: Collection[str]) -> str | None:
    """The control token that the template writes right after an assistant's text, unless it begins turns.

    None if it writes another text there, if it cannot be rendered, or if the token also stands where turns begin: a
    template that starts the next turn at once says nothing about how one ends.
    """
    tokens = [re.escape(token) for token in sorted(control, key=len, reverse=True) if token]
    if not tokens:
        return None
    pattern = re.compile("|".join(tokens))
    system = (("system", _SYSTEM),)
    exchange = (("user", _USER), ("assistant", _ASSISTANT))
    for opening, first in ((system, _SYSTEM), ((), _USER)):  # with a system message, no default one is put in
        text = _render(template, (*opening, *exchange))
        if text is not None and first in text and _ASSISTANT in text:
            break
    else:
        return None
    before, _, tail = text.rpartition(_ASSISTANT)
    found = _first(tail.lstrip(), pattern)
    if found is None or found in _openers(text, before, first, pattern):
        return None
    longer = _render(template, (*opening, *exchange, ("user", _NEXT), ("assistant", _ASSISTANT)))
    between = "" if longer is None else longer.partition(_NEXT)[0].rpartition(_ASSISTANT)[2].lstrip()
    again = _first(between, pattern) == found
    return found if again or found not in before else None


def _openers(text: str, before: str, first: str, control: re.Pattern[str]) -> set[str]:
    """Control tokens that begin turns: all before the first text, and the last of several before each other text.

    A single one between two texts may end the one or begin the other; before the first text there is nothing to end.
    """
    out = set(control.findall(text.partition(first)[0]))
    system = "" if first == _USER else text.partition(first)[2].partition(_USER)[0]
    for gap in (system, before.rpartition(_USER)[2]):
        tokens = control.findall(gap)
        out.update(tokens[-1:] if len(tokens) > 1 else [])
    return out


def _first(text: str, control: re.Pattern[str]) -> str | None:
    """The control token that `text` begins with, the longest of several."""
    found = control.match(text)
    return found[0] if found else None


def _render(template: ChatTemplate, turns: Sequence[tuple[str, str]]) -> str | None:
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = template.render(messages, add_generation_prompt=False)
    except InferirError:
        return None
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")  # a plain text, without origins


def _warn(message: str) -> None:
    warnings.warn(message, TemplateWarning, stacklevel=4)
