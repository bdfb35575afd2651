"""What a request wants its text to look like."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from inferir.ir.errors import RequestError
from inferir.runtime.structured.json_schema import check_schema, short
from inferir.runtime.structured.regexes import check_regex
from inferir.runtime.structured.spelling import plain

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]
KINDS: tuple[str, ...] = get_args(Kind)
_MADE = ("text_or_calls",)  # by `tools.text_or_calls`, from specifications that were checked

MAX_BYTES = 256 * 1024
MAX_REGEX_BYTES = 16 * 1024
MAX_CHOICES = 10_000


@dataclass(frozen=True)
class StructuredSpec:
    """A kind of structure and its description.

    kind: "json_schema" (value: the schema as an object or as JSON text), "json_object" (any JSON object; value: None),
    "regex" (the whole text matches it), "choice" (one of a list of strings), "grammar" (GBNF text with a rule `root`).
    value: kept in a canonical, hashable form: JSON text in the order of the schema's keys and in plain keywords (see
    `spelling.plain`), text, or a tuple of strings.
    source: the request field that errors name.

    Raises `RequestError` naming the field for what can be seen without compiling: wrong types, sizes, keywords that
    could not be honoured, references that lead nowhere. The rest is reported by the compiler in the same way.
    """

    kind: Kind | Literal["text_or_calls"]
    value: Any = None
    source: str = field(default="structured_outputs", compare=False)

    def __post_init__(self) -> None:
        if self.kind in _MADE:
            return
        if self.kind not in KINDS:
            raise RequestError(f"{self.source}: unknown kind {self.kind!r}; use one of {', '.join(KINDS)}", self.source)
        object.__setattr__(self, "value", getattr(self, f"_{self.kind}")(self.value))

    @staticmethod
    def checked(kind: str, value: Any, source: str) -> StructuredSpec:
        """The specification of a canonical value, as it stands in one that was checked before; lists become tuples."""
        made = object.__new__(StructuredSpec)
        for name, field_value in (("kind", kind), ("value", value), ("source", source)):
            object.__setattr__(made, name, tuple(field_value) if isinstance(field_value, list) else field_value)
        return made

    @cached_property
    def digest(self) -> str:
        """Equal for equal specifications."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return hashlib.blake2b(f"{self.kind}\0{text}".encode(), digest_size=16).hexdigest()

    def error(self, reason: str) -> RequestError:
        """An error about this specification that names its field."""
        return RequestError(f"{self.source}: {reason}", self.source)

    def _json_schema(self, value: Any) -> str:
        if isinstance(value, str):
            self._text("the JSON schema", value, MAX_BYTES)
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as e:
                raise self.error(f"the JSON schema is not JSON: {e}") from None
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise self.error(f"the JSON schema is not JSON: {e}") from None
        self._text("the JSON schema", text, MAX_BYTES)
        try:
            made = plain(value, text)
        except RecursionError:
            raise self.error("the JSON schema cannot be used: it is nested too deeply") from None
        reason = check_schema(made)
        if reason is not None:
            raise self.error(f"the JSON schema cannot be used: {reason}")
        return text if made is value else json.dumps(made, ensure_ascii=False)

    def _json_object(self, value: Any) -> None:
        if value is not None and value is not True:
            raise self.error(f"json_object takes no value, not {short(value)}")

    def _regex(self, value: Any) -> str:
        text = self._text("the regex", value, MAX_REGEX_BYTES)
        reason = check_regex(text)
        if reason is not None:
            raise self.error(f"the regex cannot be used: {reason}")
        return text

    def _grammar(self, value: Any) -> str:
        return self._text("the grammar", value, MAX_BYTES)

    def _choice(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise self.error(f"choice must be a list of strings, not {short(value)}")
        if len(value) > MAX_CHOICES:
            raise self.error(f"choice has {len(value)} entries, more than {MAX_CHOICES}")
        if not all(isinstance(v, str) for v in value):
            raise self.error("choice must hold only strings")
        if "" in value:
            raise self.error("choice must not hold an empty string")
        self._text("choice", "".join(value), MAX_BYTES)
        return tuple(value)

    def _text(self, what: str, value: Any, limit: int) -> str:
        if not isinstance(value, str):
            raise self.error(f"{what} must be text, not {short(value)}")
        if not value:
            raise self.error(f"{what} is empty")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise self.error(f"{what} holds half of a surrogate pair, which no text can contain") from None
        if size > limit:
            raise self.error(f"{what} has {size} bytes, more than {limit}")
        if "\0" in value:
            raise self.error(f"{what} holds a null character")
        return value
