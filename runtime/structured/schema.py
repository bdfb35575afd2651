"""JSON schemas: what can be honoured exactly, and a form of them that the grammar compiler reads as they are meant.

The compiler below ignores keywords it does not know or that stand beside others it prefers, which would give text that
does not validate. Such schemas are refused here with a reason; others are made explicit.
"""

from __future__ import annotations

import re
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_PROPERTIES = 500

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_OWNED = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_UNSUPPORTED = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "multipleOf", "propertyNames"),
    *("dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef", "$recursiveRef", "additionalItems"),
)
_COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
_BOUNDS = _OWNED["number"]
_CONSTRAINTS = {"type", "enum", "const", *(k for keys in _OWNED.values() for k in keys)}
_REGEX_PART = re.compile(r"\[\^|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_BRANCHES = ("anyOf", "oneOf", "allOf")
_CHOOSERS = ("$ref", *_BRANCHES)


class _RefusedError(Exception):
    """The reason why a schema cannot be used."""


def check_schema(schema: Any) -> str | None:
    """Why `schema` (parsed JSON) cannot be used, or None."""
    try:
        _Checker(schema).node(schema, "#", 0)
    except _RefusedError as e:
        return str(e)
    return None


def explicit_schema(schema: Any) -> Any:
    """A checked schema with implied parts written out: types implied by keywords, and items of arrays that say nothing.

    Keys keep their order. Additional properties stay forbidden unless the schema asks for them: with them, a model
    could go on for ever.
    """
    if not isinstance(schema, dict):
        return schema
    out = {k: _explicit_value(k, v) for k, v in schema.items()}
    if "enum" in out and "type" in out:
        out["enum"] = [v for v in out["enum"] if _has_type(v, out["type"])]
        del out["type"]
    if "const" in out:
        out.pop("type", None)
    if not any(k in out for k in (*_CHOOSERS, "type", "enum", "const")):
        implied = [t for t, keys in _OWNED.items() if any(k in out for k in keys)]
        if implied:
            out["type"] = implied[0] if len(implied) == 1 else implied
    kinds = out.get("type")
    missing = [r for r in out.get("required", ()) if r not in out.get("properties", {})]
    if missing:
        other = out.get("additionalProperties", True)
        out["properties"] = {**out.get("properties", {}), **dict.fromkeys(missing, other)}
    if "array" in (kinds if isinstance(kinds, list) else [kinds]):
        if not any(k in out for k in ("items", "prefixItems", "unevaluatedItems")):
            out["items"] = True
    return out


def patterns(schema: Any) -> list[str]:
    """All regexes in a schema."""
    if isinstance(schema, list):
        return [p for s in schema for p in patterns(s)]
    if not isinstance(schema, dict):
        return []
    out = []
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            out.append(value)
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            out += [*(value if key == "patternProperties" else ()), *(p for s in value.values() for p in patterns(s))]
        elif key not in ("enum", "const", "default", "examples"):
            out += patterns(value)
    return out


def _explicit_value(key: str, value: Any) -> Any:
    if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
        return {k: explicit_schema(v) for k, v in value.items()}
    if key in (*_BRANCHES, "prefixItems") and isinstance(value, list):
        return [explicit_schema(v) for v in value]
    if key in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
        return explicit_schema(value)
    return value


class _Checker:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.nodes = 0

    def node(self, schema: Any, where: str, depth: int) -> None:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise _RefusedError(f"{_place(where)} is nested more than {MAX_DEPTH} levels deep")
        if self.nodes > MAX_NODES:
            raise _RefusedError(f"it has more than {MAX_NODES} parts")
        if isinstance(schema, bool):
            if not schema and where == "#":
                raise _RefusedError("false allows nothing")
            return
        if not isinstance(schema, dict):
            raise _RefusedError(f"{_place(where)} must be an object, not {_kind(schema)}")
        self._keywords(schema, where)
        self._combination(schema, where)
        if "$ref" in schema:
            self._reference(schema["$ref"], where)
        self._children(schema, where, depth + 1)

    def _keywords(self, schema: dict[str, Any], where: str) -> None:
        for key in _UNSUPPORTED:
            if key in schema:
                raise _RefusedError(f"{_place(where)} uses {key}, which is not supported")
        if schema.get("uniqueItems") not in (None, False):
            raise _RefusedError(f"{_place(where)} uses uniqueItems, which is not supported")
        kinds = schema.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in _TYPES:
                raise _RefusedError(f"{_place(where)} has the unknown type {kind!r}; types are {', '.join(_TYPES)}")
        if schema.get("type") == []:
            raise _RefusedError(f"{_place(where)} has an empty list of types")
        for key in _COUNTS:
            count = schema.get(key, 0)
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise _RefusedError(f"{key} of {_place(where)} must be a whole number, 0 or more")
        for key in _BOUNDS:
            bound = schema.get(key, 0)
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise _RefusedError(f"{key} of {_place(where)} must be a number")
        for low, high in zip(_COUNTS[::2], _COUNTS[1::2], strict=True):
            if low in schema and schema[low] > schema.get(high, schema[low]):
                raise _RefusedError(f"{low} of {_place(where)} is larger than {high}")
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            raise _RefusedError(f"enum of {_place(where)} must be a list with at least one value")
        for key in ("pattern", "format", "$ref"):
            if not isinstance(schema.get(key, ""), str):
                raise _RefusedError(f"{key} of {_place(where)} must be text")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
            raise _RefusedError(f"required of {_place(where)} must be a list of names")

    def _combination(self, schema: dict[str, Any], where: str) -> None:
        """Only one keyword of a node decides, so others that would narrow it further cannot stand beside it."""
        deciding = [k for k in (*_CHOOSERS, "enum", "const") if k in schema]
        if len(deciding) > 1:
            raise _RefusedError(f"{_place(where)} combines {deciding[0]} with {deciding[1]}, which is not supported")
        if deciding:
            allowed = {"type"} if deciding[0] in ("enum", "const") else set()
            for key in schema:
                if key in _CONSTRAINTS - allowed - {deciding[0]}:
                    raise _RefusedError(f"{_place(where)} combines {deciding[0]} with {key}, which is not supported")
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        if values and "type" in schema and not any(_has_type(v, schema["type"]) for v in values):
            raise _RefusedError(f"no value that {_place(where)} lists is of its type")
        if len(schema.get("allOf", [0])) != 1 and isinstance(schema.get("allOf"), list):
            raise _RefusedError(f"{_place(where)} uses allOf with more than one part, which is not supported")
        if "pattern" in schema and any(k in schema for k in ("format", "minLength", "maxLength")):
            raise _RefusedError(f"{_place(where)} combines pattern with format or a length, which is not supported")
        if "format" in schema and any(k in schema for k in ("minLength", "maxLength")):
            raise _RefusedError(f"{_place(where)} combines format with a length, which is not supported")
        if "required" in schema and schema.get("additionalProperties") is False:
            missing = [r for r in schema["required"] if r not in schema.get("properties", {})]
            if missing:
                raise _RefusedError(f"{_place(where)} requires {missing[0]!r}, which it does not allow")
        if "pattern" in schema and not _json_safe(schema["pattern"]):
            raise _RefusedError(
                f"the pattern of {_place(where)} names a quote, a backslash or a control character outside [^...], "
                "which is not supported inside JSON strings"
            )
        patterned = schema.get("patternProperties")
        if isinstance(patterned, dict) and len(patterned) > 1:
            raise _RefusedError(
                f"{_place(where)} has patternProperties with more than one pattern, which is not supported"
            )
        if patterned is not None and ("properties" in schema or "required" in schema):
            raise _RefusedError(
                f"{_place(where)} combines patternProperties with other properties, which is not supported"
            )

    def _children(self, schema: dict[str, Any], where: str, depth: int) -> None:
        for key in ("properties", "patternProperties", "$defs", "definitions"):
            named = schema.get(key, {})
            if not isinstance(named, dict):
                raise _RefusedError(f"{key} of {_place(where)} must be an object, not {_kind(named)}")
            if key == "properties" and len(named) > MAX_PROPERTIES:
                raise _RefusedError(f"{_place(where)} has {len(named)} properties, more than {MAX_PROPERTIES}")
            for name, child in named.items():
                self.node(child, f"{where}/{key}/{name}", depth)
        for key in (*_BRANCHES, "prefixItems"):
            if key not in schema:
                continue
            listed = schema[key]
            if not isinstance(listed, list) or not listed:
                raise _RefusedError(f"{key} of {_place(where)} must be a list with at least one schema")
            for i, child in enumerate(listed):
                self.node(child, f"{where}/{key}/{i}", depth)
        for key in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
            if key in schema:
                self.node(schema[key], f"{where}/{key}", depth)

    def _reference(self, ref: str, where: str) -> None:
        """A reference is local, leads to a schema, and some step of every cycle consumes text."""
        seen = [where]
        node = self._resolve(ref, where)
        while isinstance(node, dict):
            single = node.get("allOf")
            if isinstance(single, list) and len(single) == 1 and isinstance(single[0], dict):
                node = single[0]
                continue
            if "$ref" not in node or not isinstance(node["$ref"], str):
                break
            if ref in seen:
                raise _RefusedError(f"{_place(where)} refers to itself through {' -> '.join([*seen[1:], ref])}")
            seen.append(ref)
            ref = node["$ref"]
            node = self._resolve(ref, where)

    def _resolve(self, ref: str, where: str) -> Any:
        if ref != "#" and not ref.startswith("#/"):
            raise _RefusedError(
                f"{_place(where)} refers to {ref[:80]!r}; only references inside the schema are followed"
            )
        node = self.root
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise _RefusedError(f"{_place(where)} refers to {ref[:80]!r}, which does not exist")
        if not isinstance(node, dict | bool):
            raise _RefusedError(f"{_place(where)} refers to {ref[:80]!r}, which is not a schema")
        return node


def _json_safe(pattern: str) -> bool:
    """Whether a regex names no character that a JSON string has to escape; the compiler would not escape it."""
    negated = False
    for found in _REGEX_PART.finditer(pattern):
        part = found[0]
        if part == "[^":
            negated = True
        elif part == "]":
            negated = False
        elif not negated:
            code = ord(part[-1]) if len(part) == 1 else int(part[2:], 16) if len(part) > 2 else None
            if part[:1] == "\\" and len(part) == 2:
                code = 0 if part[1] in 'nrtfv0c"\\' else None
            if code is not None and (code < 32 or code in (34, 92)):
                return False
    return True


def _has_type(value: Any, kinds: Any) -> bool:
    return any(_is(value, k) for k in (kinds if isinstance(kinds, list) else [kinds]))


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == _kind(value)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", tuple: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _place(where: str) -> str:
    text = where if len(where) <= 80 else "..." + where[-77:]
    return "the schema" if text == "#" else text
