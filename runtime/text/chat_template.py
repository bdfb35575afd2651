"""Chat templates: messages to prompt text, as the model's own Jinja template writes it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext

from inferir.ir.errors import ArtifactError, RequestError
from inferir.runtime.text.chat_messages import (
    TOOLS,
    VARIABLES,
    CallForm,
    Message,
    clean,
    traced,
    traced_messages,
    with_calls_as,
)
from inferir.runtime.text.template_limits import LimitedEnvironment, rendering
from inferir.runtime.text.tokenizer import read_json

__all__ = ["ChatTemplate", "Message"]

_VARIABLES = "chat_template_kwargs"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled template in a sandbox: it can neither reach internals nor change its arguments, and it takes little
    time and memory (`template_limits.py`).
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        environment = LimitedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.add_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["dict"] = _make_dict
        environment.globals["namespace"] = _Namespace
        try:
            self._template = environment.from_string(source)
        except Exception as e:  # Jinja's own errors, and Python's for what Jinja made of the template
            line = getattr(e, "lineno", None) if isinstance(e, jinja2.TemplateSyntaxError) else None
            at = "" if line is None else f" (line {line})"
            raise ArtifactError(f"chat template: {str(e) or type(e).__name__}{at}") from None
        self.source = source
        self._special_tokens = dict(special_tokens or {})

    @staticmethod
    def from_source(source: str, folder: Path) -> ChatTemplate:
        """A template given as text, with the special tokens of the tokenizer in `folder`."""
        config = read_json(folder / "tokenizer_config.json")
        return ChatTemplate(source, _special_tokens(read_json(folder / "special_tokens_map.json") | config))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        calls: CallForm = "object",
    ) -> str:
        """The prompt for `messages`, special tokens included (so it must be tokenized without adding any).

        What messages, tools and variables bring to it is marked (`traced_text.py`). With `continue_final_message`, the
        prompt ends with the last message's text, for the model to go on from there. now: the time that the template
        may ask for. Raises `RequestError` with the template's own message where it refuses the messages.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other", "continue_final_message"
            )
        cleaned = clean(messages)
        marker = f"\x02{secrets.token_hex(16)}\x03"
        if continue_final_message:
            cleaned[-1]["content"] += marker
        given = {n: traced(v, VARIABLES, _VARIABLES, f"{_VARIABLES}.{n}") for n, v in (variables or {}).items()}
        values: dict[str, Any] = {
            "messages": traced_messages(with_calls_as(cleaned, calls), self.source),
            "tools": traced(tools or None, TOOLS, "tools", "tools"),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": _clock(now or datetime.now()),
        }
        try:
            with rendering() as budget:
                values["range"] = budget.numbers
                text = self._template.render(**{**self._special_tokens, **given, **values})
        except Exception as e:  # a template is a program that may fail in any way
            raise RequestError(f"the chat template refuses these messages: {e}", "messages") from None
        if continue_final_message:
            text, found, _ = text.rpartition(marker)
            if not found:
                raise RequestError("the chat template leaves out the final message; it cannot be continued", "messages")
        return text


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    out = {}
    for name in _TOKENS:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            out[name] = value
    return out


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        return now.strftime(format)

    return strftime_now


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter, which would put \\u0027 into prompts."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_dict(*args: Any, **values: Any) -> dict[str, Any]:
    """Stands for `dict` in templates, which would offer its attributes."""
    return dict(*args, **values)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, without the private names through which a template could reach internals."""

    def __init__(*args: Any, **values: Any) -> None:
        self, given = args[0], dict(*args[1:], **values)
        for name in given:
            _check_public(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the private name {name!r}")


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` marks assistant text for training; in a prompt it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it this way

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _same(self, context: jinja2.nodes.EvalContext, caller: Any) -> str:
        return str(caller())
