"""The chat templates of a model: which one renders, and whether all that it was given arrives in the prompt."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from inferir.ir.errors import ArtifactError, RequestError
from inferir.ir.system.text_file import read_text
from inferir.runtime.text.chat_messages import CALL_FORMS, TOOLS, Message, clean
from inferir.runtime.text.chat_template import ChatTemplate
from inferir.runtime.text.tokenizer import read_json
from inferir.runtime.text.traced_text import Origin, spans

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Name of the template that renders where tools are given."""


class RenderOptions(TypedDict, total=False):
    """See `ChatTemplate.render`."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    variables: Mapping[str, Any] | None


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation, with its origins marked. warnings: what the template left out, for people. lost_calls:
    whether calls are among that.
    """

    text: str
    warnings: tuple[str, ...] = ()
    lost_calls: bool = False


class ChatTemplates:
    """Named templates, "default" among them, or one that the user gave. One that cannot be used is an error only when
    it is wanted.
    """

    def __init__(self, templates: Mapping[str, ChatTemplate], problems: Mapping[str, str] | None = None) -> None:
        self._templates = dict(templates)
        self.problems = dict(problems or {})

    @staticmethod
    def load(folder: Path) -> ChatTemplates | None:
        """Those in a tokenizer's folder; None if there is none."""
        templates, problems = {}, {}
        for name, (place, given) in _sources(folder).items():
            try:
                templates[name] = ChatTemplate.from_source(_text(given), folder)
            except ArtifactError as error:
                problems[name] = f"{place}: {str(error).removeprefix('chat template: ')}"
        return ChatTemplates(templates, problems) if templates or problems else None

    @staticmethod
    def from_file(path: Path, folder: Path, option: str) -> ChatTemplates:
        """A template that the user gave with `option`, and the special tokens of the tokenizer in `folder`.

        Raises `InferirError` naming option and file if it cannot be used.
        """
        text = read_text(path, option)
        try:
            return ChatTemplates({DEFAULT: ChatTemplate.from_source(text, folder)})
        except ArtifactError as error:
            raise ArtifactError(f"{option} {path}: {str(error).removeprefix('chat template: ')}") from None

    @property
    def usable(self) -> bool:
        """Whether conversations without tools can be rendered."""
        return DEFAULT in self._templates

    @property
    def has_tool_use(self) -> bool:
        """Whether requests with tools have a template of their own."""
        return TOOL_USE in self._templates

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(t.source for t in self._templates.values())

    def source(self, *, tools: bool) -> str | None:
        """The text of the template that renders with or without tools, if it can be used."""
        template = self._templates.get(self._name(tools))
        return None if template is None else template.source

    def pick(self, *, tools: bool) -> ChatTemplate:
        """The template for a request. Raises `RequestError` if it is missing or cannot be used."""
        name = self._name(tools)
        if name in self._templates:
            return self._templates[name]
        if name in self.problems:
            reason = f"the chat template cannot be used: {self.problems[name]}"
        else:
            have = ", ".join(sorted({*self._templates, *self.problems}))
            reason = f"the model has no default chat template, only {have}"
        raise RequestError(
            f"{reason}; give a prompt instead of messages, or start the server with --chat-template FILE", "messages"
        )

    def prompt(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> ChatPrompt:
        """The prompt for a conversation, in which something of every message arrives.

        Raises `RequestError` where the template refuses the messages, or leaves one out; it names that message. Where
        this befalls messages of the role "developer", they are tried as "system"; and where it befalls calls, other
        forms of them that templates expect.
        """
        tools = bool(options.get("tools"))
        render = partial(self.pick(tools=tools).render, now=datetime.now(), **options)
        cleaned = clean(messages)
        found: ChatPrompt | None = None
        refusal: RequestError | None = None
        for form in CALL_FORMS if any(m.get("tool_calls") for m in cleaned) else CALL_FORMS[:1]:
            try:
                prompt = _complete(cleaned, tools, partial(render, calls=form))
            except RequestError as error:
                refusal = refusal or error
                continue
            if not prompt.lost_calls:
                return prompt
            found = found or prompt
        if found is not None:
            return found
        assert refusal is not None
        raise refusal

    def _name(self, tools: bool) -> str:
        return TOOL_USE if tools and TOOL_USE in {*self._templates, *self.problems} else DEFAULT


class _LostError(RequestError):
    """A message of which nothing arrives in the prompt."""

    def __init__(self, index: int, role: str) -> None:
        super().__init__(f"the chat template leaves out messages[{index}], of the role {role[:100]!r}", "messages")
        self.index = index
        self.role = role


Render = Callable[[Sequence[Message]], str]


def _complete(messages: list[dict[str, Any]], tools: bool, render: Render) -> ChatPrompt:
    """As `_checked`, of messages as they are or with "system" for the role "developer"."""
    try:
        return _checked(messages, tools, render)
    except RequestError as first:
        renamed = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        if renamed == messages:
            raise
        try:
            return _checked(renamed, tools, render)
        except RequestError as second:  # worth telling if it speaks of a role that the client gave
            given = isinstance(second, _LostError) and second.role == messages[second.index]["role"]
            raise (second if given else first) from None


def _checked(messages: list[dict[str, Any]], tools: bool, render: Render) -> ChatPrompt:
    """What is rendered, if something of every message is in it."""
    text = render(messages)
    arrived = _arrived(text)
    lost = _lost(messages, text, arrived, render)
    if lost is not None:
        raise _LostError(lost, messages[lost]["role"])
    warnings = []
    if tools and TOOLS not in arrived:
        warnings.append("the chat template does not tell the model of the tools")
    lost_calls = [i for i, m in enumerate(messages) if m.get("tool_calls") and (i, "calls") not in arrived]
    warnings += [f"the chat template leaves out the tool_calls of messages[{i}]" for i in lost_calls]
    return ChatPrompt(text, tuple(warnings), bool(lost_calls))


def _arrived(text: str) -> set[Origin | tuple[int | None, str]]:
    """Origins of what a text shows, and the parts of messages."""
    found: set[Origin | tuple[int | None, str]] = set()
    for start, end, origins in spans(text):
        if not found.issuperset(origins) and text[start:end].strip():
            for origin in origins:
                found |= {origin, (origin.message, origin.part)}
    return found


def _lost(messages: list[dict[str, Any]], text: str, arrived: set[Any], render: Render) -> int | None:
    """Index of the first message with a text that makes no difference to the prompt.

    Templates leave out some of a text on purpose, such as earlier reasoning, or flags that they obey; another text in
    the same place would show then.
    """
    missing = [
        i
        for i, m in enumerate(messages)
        if m["content"].strip() and (i, "content") not in arrived and (i, "calls") not in arrived
    ]
    if not missing:
        return None
    probed = _with_probes(messages, missing)
    shown = _arrived(_rendered(render, probed) or "")
    for i in missing:
        if (i, "content") not in shown and _rendered(render, _with_probes(messages, [i])) == text:
            return i
    return None


def _with_probes(messages: list[dict[str, Any]], where: list[int]) -> list[dict[str, Any]]:
    out = list(messages)
    for i in where:
        out[i] = {**messages[i], "content": secrets.token_hex(8)}
    return out


def _rendered(render: Render, messages: list[dict[str, Any]]) -> str | None:
    try:
        return render(messages)
    except RequestError:
        return None


def _sources(folder: Path) -> dict[str, tuple[str, Any]]:
    """The templates of a tokenizer's folder by name: chat_template.jinja and chat_template.NAME.jinja, else what
    tokenizer_config.json holds; each with the file that messages name, and where `_text` finds it.
    """
    found: dict[str, tuple[str, Any]] = {}
    for path in sorted(folder.glob("chat_template*.jinja")):
        name = path.name.removeprefix("chat_template").removesuffix(".jinja").removeprefix(".") or DEFAULT
        found[name] = f"{folder.name}/{path.name}", path
    if found:
        return found
    given = read_json(folder / "tokenizer_config.json").get("chat_template")
    place = "tokenizer/tokenizer_config.json"
    if given is None or given == "" or given == []:
        return {}
    if not isinstance(given, list):
        return {DEFAULT: (place, given)}
    for i, entry in enumerate(given):
        fields = entry if isinstance(entry, Mapping) else {}
        given_name = fields.get("name")
        found[given_name if isinstance(given_name, str) else f"entry {i}"] = place, fields.get("template")
    return found


def _text(given: Any) -> str:
    """The text of a template: of the file that is given, or the value itself."""
    try:
        given = given.read_text(encoding="utf-8") if isinstance(given, Path) else given
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"chat template: {error}") from None
    if not isinstance(given, str):
        raise ArtifactError(f"chat template: chat_template is {type(given).__name__}, not text")
    return given
