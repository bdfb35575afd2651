"""The form of a checked JSON schema that the core reads as it is meant."""

from __future__ import annotations

from typing import Any

from inferir.runtime.structured.json_schema import COUNTS, FORMATS, NO_BOUND
from inferir.runtime.structured.references import BRANCHES, LISTED, NAMED, SINGLE, Resolver

MAX_WHITESPACE = 5
"""Blanks between two tokens of JSON: room for a line break and two levels of indentation, which models write unasked
(less makes their text worse), and few enough that a model which loves blanks still comes to an end."""

_KEPT = (
    *("type", "enum", "const", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
)
_LEVELS = 12  # that stand within one another before the rest gets a name: the core reads JSON 128 levels deep

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_ZONE = r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]{{1,9}})?{_ZONE}"
_OWN_FORMATS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[tT]{_TIME}$"}  # the core's own know no leap years


def core_schema(schema: Any) -> dict[str, Any]:
    """A checked schema in the words of the core, with the options that it takes along.

    Keys keep their order, which is that of the texts. Annotations and unknown keywords are left out, so that none means
    something to the core; references lead to definitions with plain names; `oneOf`, whose parts exclude each other, is
    `anyOf`.
    """
    form = _Form(schema)
    options: dict[str, Any] = {"whitespace_pattern": f"[ \\t\\n\\r]{{1,{MAX_WHITESPACE}}}"}
    if form.open_names:
        # The core keeps listed names from coming again as other keys, but not in other spellings.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return {**form.schema, "x-guidance": options}


def unwritable(schema: Any) -> str | None:
    """A listed value or name that `core_schema` cannot express in a text; None if there is none."""
    form = _Form(schema)
    return next((t for t in form.literals if not _plain(t)), None) if form.open_names else None


class _Form:
    """schema: the form. open_names: whether some object names keys and allows others. literals: strings that texts hold
    as they are.
    """

    def __init__(self, root: Any) -> None:
        self._resolver = Resolver(root)
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Any] = {}
        self._left: list[tuple[str, Any]] = []
        self.open_names = False
        self.literals: list[str] = []

        made = self._node(root, 0)
        while self._left:
            name, target = self._left.pop()
            self._definitions[name] = self._node(target, 0)
        if not isinstance(made, dict):
            made = {}  # true
        self.schema = {**made, "$defs": self._definitions} if self._definitions else made

    def _node(self, schema: Any, level: int) -> Any:
        if not isinstance(schema, dict):
            return schema
        if level >= _LEVELS:
            return {"$ref": self._named(f"level {len(self._names)}", schema)}
        out: dict[str, Any] = {}
        also: list[Any] = []
        for key, value in schema.items():
            self._keyword(out, also, key, value, level + 1)
        for key, plain in (("unevaluatedItems", "items"), ("unevaluatedProperties", "additionalProperties")):
            if key in schema and plain not in schema and not any(k in schema for k in ("$ref", *BRANCHES)):
                out[plain] = self._node(schema[key], level + 1)
        self._counted(out, also, set(schema.get("required", ())))
        if also:
            out["allOf"] = [*out.get("allOf", ()), *also]
        names = any(schema.get(k) for k in ("properties", "required", "patternProperties"))
        if names and out.get("additionalProperties") is not False:
            self.open_names = True
        return out

    def _keyword(self, out: dict[str, Any], also: list[Any], key: str, value: Any, level: int) -> None:
        if key in COUNTS:
            if key[:3] == "min" or value < NO_BOUND:
                out[key] = int(value)
        elif key in _KEPT:
            out[key] = value
            if key in ("enum", "const"):
                self._literals(value)
            elif key == "required":
                self.literals += value
        elif key == "$ref":
            place, target = self._resolver.resolve(value)
            out[key] = self._named(place, target)
        elif key == "oneOf":
            made = {"anyOf": [self._node(v, level) for v in value]}
            also.append(made)
        elif key == "format":
            if value in _OWN_FORMATS:
                also.append({"pattern": _OWN_FORMATS[value]})
            elif value in FORMATS:
                out[key] = value
        elif key in NAMED and key not in ("$defs", "definitions"):
            out[key] = {name: self._node(v, level) for name, v in value.items()}
            if key == "properties":
                self.literals += value
        elif key in LISTED:
            out[key] = [self._node(v, level) for v in value]
        elif key in SINGLE and not key.startswith("unevaluated"):
            out[key] = self._node(value, level)

    @staticmethod
    def _counted(out: dict[str, Any], also: list[Any], required: set[str]) -> None:
        """One property more than those required, where some are optional: one of these, or one that is not listed."""
        optional = [name for name in out.get("properties", ()) if name not in required]
        if optional and out.get("minProperties", 0) > len(required):
            least = out.pop("minProperties")
            other = {"properties": dict.fromkeys(optional, False), "minProperties": least}
            also.append({"anyOf": [*({"required": [name]} for name in optional), other]})

    def _named(self, place: str, target: Any) -> str:
        """A reference to `target`, which gets a definition."""
        name = self._names.get(place)
        if name is None:
            name = self._names[place] = f"d{len(self._names)}"
            self._left.append((name, target))
        return f"#/$defs/{name}"

    def _literals(self, value: Any) -> None:
        if isinstance(value, str):
            self.literals.append(value)
        elif isinstance(value, list):
            for v in value:
                self._literals(v)
        elif isinstance(value, dict):
            self.literals += value
            for v in value.values():
                self._literals(v)


def _plain(text: str) -> bool:
    return all((c >= " " and c != "\x7f") or c in "\b\t\n\f\r" for c in text)
