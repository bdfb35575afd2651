"""JSON schemas: what can be honoured exactly. All else is refused with a reason that names keyword and place.

Keywords have the meaning of JSON Schema 2020-12, whatever `$schema` says. Those that only describe, and those that it
does not know, have no effect there either.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from inferir.runtime.structured.disjoint import Exclusion
from inferir.runtime.structured.references import (
    BRANCHES,
    LISTED,
    NAMED,
    SINGLE,
    BrokenReferenceError,
    Resolver,
    kind_of,
    parts,
    type_names,
)
from inferir.runtime.structured.regexes import check_regex

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_PROPERTIES = 500
MAX_PATTERN_PROPERTIES = 32
MAX_COUNTED_PROPERTIES = 64
MAX_MULTIPLE = 10_000
MAX_ALTERNATIVES = 500
NO_BOUND = 1 << 31
"""Counts that no text reaches."""
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
"""Formats that are enforced."""

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_OTHER_FORMATS = (  # of JSON Schema; names that it does not define mean nothing
    *("idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
)
_UNSUPPORTED = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames"),
    *("dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef", "$recursiveRef", "additionalItems"),
)
COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MANY = 10**9
_APPLICATORS = ("$ref", *BRANCHES)


class _RefusedError(Exception):
    """The reason why a schema cannot be used."""


def check_schema(schema: Any) -> str | None:
    """Why `schema` (parsed JSON) cannot be used, or None."""
    try:
        _Checker(schema).run()
    except _RefusedError as e:
        return str(e)
    except RecursionError:
        return "it is nested too deeply"
    return None


class _Checker:
    def __init__(self, root: Any) -> None:
        self.root = root
        self._resolver = Resolver(root)
        self._exclusion = Exclusion(self._resolver)
        self._nodes = 0
        self._multiples: set[Fraction] = set()
        self._seen: set[int] = set()
        self._targets: list[tuple[str, Any]] = []
        self._exclusive: list[tuple[list[Any], str]] = []
        self._ending: set[str] = set()  # places whose references were followed to their end

    def run(self) -> None:
        self._node(self.root, "#", 0)
        while self._targets:  # references may lead to where no keyword leads
            place, target = self._targets.pop()
            self._node(target, place, 0)
        for listed, where in self._exclusive:  # once all that they refer to is known to be well formed
            self._one_of(listed, where)
        if math.lcm(*(m.numerator for m in self._multiples)) > MAX_MULTIPLE:
            raise _RefusedError(f"its multipleOf values have a common multiple beyond {MAX_MULTIPLE} units")
        _Widths(self._resolver).check(self.root)

    def _node(self, schema: Any, where: str, depth: int) -> None:
        if isinstance(schema, dict):
            if id(schema) in self._seen:
                return
            self._seen.add(id(schema))
        self._count(1)
        if depth > MAX_DEPTH:
            raise _RefusedError(f"{_place(where)} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, bool):
            if not schema and where == "#":
                raise _RefusedError("false allows nothing")
            return
        if not isinstance(schema, dict):
            raise _RefusedError(f"{_place(where)} must be an object, not {kind_of(schema)}")
        self._keywords(schema, where)
        self._values(schema, where)
        self._numbers(schema, where)
        self._texts(schema, where)
        self._shapes(schema, where)
        if "$ref" in schema:
            self._reference(schema["$ref"], where)
        for step, child in parts(schema):
            self._node(child, where + step, depth + 1)
        if "oneOf" in schema:
            self._exclusive.append((schema["oneOf"], where))

    def _count(self, parts: int) -> None:
        self._nodes += parts
        if self._nodes > MAX_NODES:
            raise _RefusedError(f"it has more than {MAX_NODES} parts")

    def _keywords(self, schema: dict[str, Any], where: str) -> None:
        for key in _UNSUPPORTED:
            if key in schema:
                raise _RefusedError(f"{_place(where)} uses {key}, which is not supported")
        if schema.get("uniqueItems") not in (None, False):
            raise _RefusedError(f"{_place(where)} uses uniqueItems, which is not supported")
        if "$id" in schema and where != "#":
            raise _RefusedError(f"{_place(where)} has an $id of its own, which is not supported")
        for kind in type_names(schema.get("type", [])):
            if kind not in _TYPES:
                raise _RefusedError(f"{_place(where)} has the unknown type {kind!r}; types are {', '.join(_TYPES)}")
        if schema.get("type") == []:
            raise _RefusedError(f"{_place(where)} has an empty list of types")
        for key in ("unevaluatedItems", "unevaluatedProperties"):
            if schema.get(key, True) not in (True, {}) and any(k in schema for k in _APPLICATORS):
                beside = next(k for k in _APPLICATORS if k in schema)
                raise _RefusedError(f"{_place(where)} combines {key} with {beside}, which is not supported")

    def _values(self, schema: dict[str, Any], where: str) -> None:
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            raise _RefusedError(f"enum of {_place(where)} must be a list with at least one value")
        for key in ("enum", "const"):
            if key not in schema:
                continue
            size, depth = _extent(schema[key])
            self._count(size)
            if depth > MAX_DEPTH:
                raise _RefusedError(f"{key} of {_place(where)} is nested more than {MAX_DEPTH} levels deep")
            if not _exact(schema[key]):
                raise _RefusedError(f"{key} of {_place(where)} has a number beyond the precision of floating point")
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        if values and "type" in schema and not any(_is(v, k) for v in values for k in type_names(schema["type"])):
            raise _RefusedError(f"no value that {_place(where)} lists is of its type")

    def _numbers(self, schema: dict[str, Any], where: str) -> None:
        for key in COUNTS:
            count = schema.get(key, 0)
            if isinstance(count, bool) or not isinstance(count, int | float) or count < 0 or count != count // 1:
                raise _RefusedError(f"{key} of {_place(where)} must be a whole number, 0 or more")
        for low, high in zip(COUNTS[::2], COUNTS[1::2], strict=True):
            if low in schema and schema[low] > schema.get(high, schema[low]):
                raise _RefusedError(f"{low} of {_place(where)} is larger than {high}")
        for key in (*_BOUNDS, "multipleOf"):
            bound = schema.get(key, 0)
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise _RefusedError(f"{key} of {_place(where)} must be a number")
            if not _exact(bound):
                raise _RefusedError(f"{key} of {_place(where)} is beyond the precision of floating point")
        if "multipleOf" in schema:
            if schema["multipleOf"] <= 0:
                raise _RefusedError(f"multipleOf of {_place(where)} must be larger than 0")
            self._multiples.add(Fraction(str(schema["multipleOf"])))

    def _texts(self, schema: dict[str, Any], where: str) -> None:
        for key in ("pattern", "format", "$ref", "$anchor", "$id"):
            if not isinstance(schema.get(key, ""), str):
                raise _RefusedError(f"{key} of {_place(where)} must be text")
        named = schema.get("patternProperties")
        for pattern in (schema.get("pattern", ""), *(named if isinstance(named, dict) else ())):
            reason = check_regex(pattern)
            if reason is not None:
                raise _RefusedError(f"the pattern {short(pattern)} of {_place(where)} cannot be used: {reason}")
        if schema.get("format") in _OTHER_FORMATS:
            raise _RefusedError(f"{_place(where)} has the format {schema['format']!r}, which is not supported")

    def _shapes(self, schema: dict[str, Any], where: str) -> None:
        for key in NAMED:
            named = schema.get(key, {})
            if not isinstance(named, dict):
                raise _RefusedError(f"{key} of {_place(where)} must be an object, not {kind_of(named)}")
        for key, most in (("properties", MAX_PROPERTIES), ("patternProperties", MAX_PATTERN_PROPERTIES)):
            if len(schema.get(key, {})) > most:
                raise _RefusedError(f"{_place(where)} has {len(schema[key])} {key}, more than {most}")
        for key in LISTED:
            if key in schema and (not isinstance(schema[key], list) or not schema[key]):
                raise _RefusedError(f"{key} of {_place(where)} must be a list with at least one schema")
        for key in SINGLE:
            if key in schema and not isinstance(schema[key], dict | bool):
                raise _RefusedError(f"{key} of {_place(where)} must be a schema, not {kind_of(schema[key])}")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
            raise _RefusedError(f"required of {_place(where)} must be a list of names")
        if len(required) > MAX_PROPERTIES:
            raise _RefusedError(f"{_place(where)} requires {len(required)} properties, more than {MAX_PROPERTIES}")
        names = schema.get("properties", {})
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            missing = [r for r in required if r not in names]
            if missing:
                raise _RefusedError(f"{_place(where)} requires {missing[0]!r}, which it does not allow")
        self._property_counts(schema, where, set(required), names)

    @staticmethod
    def _property_counts(schema: dict[str, Any], where: str, required: set[str], names: dict[str, Any]) -> None:
        """The core does not keep a key from coming twice, so it cannot count keys that the schema does not name."""
        optional = sum(name not in required for name in names)
        if schema.get("minProperties", 0) - len(required) > 1:
            raise _RefusedError(
                f"minProperties of {_place(where)} asks for several keys beyond those required, which is not supported"
            )
        closed = schema.get("additionalProperties") is False or "unevaluatedProperties" in schema
        if optional and not closed and schema.get("maxProperties", NO_BOUND) < NO_BOUND:
            raise _RefusedError(
                f"{_place(where)} has optional properties, allows others and uses maxProperties, which together is not "
                "supported; use additionalProperties: false"
            )
        if optional > MAX_COUNTED_PROPERTIES and ("minProperties" in schema or "maxProperties" in schema):
            raise _RefusedError(
                f"{_place(where)} counts properties beside {optional} optional ones, more than {MAX_COUNTED_PROPERTIES}"
            )

    def _one_of(self, listed: list[Any], where: str) -> None:
        pair = self._exclusion.unproven(listed)
        if pair is not None and self._exclusion.left < 0:
            raise _RefusedError(f"oneOf in {_place(where)} has too many parts to compare; use anyOf")
        if pair is not None:
            raise _RefusedError(
                f"parts {pair[0]} and {pair[1]} of oneOf in {_place(where)} may both match, which is not supported; "
                "use anyOf, or give them a required property with different values"
            )

    def _reference(self, ref: str, where: str) -> None:
        """A reference is local, leads to a schema, and some step of every cycle consumes text."""
        seen: dict[str, None] = {}
        places: list[str] = []
        while True:
            try:
                place, node = self._resolver.resolve(ref)
            except BrokenReferenceError as e:
                raise _RefusedError(f"{_place(where)} refers to {e}") from None
            if not seen:
                self._targets.append((place, node))
            if place in self._ending:
                return
            single = node.get("allOf") if isinstance(node, dict) else None
            while isinstance(single, list) and len(single) == 1 and isinstance(single[0], dict):
                node, single = single[0], single[0].get("allOf")
            if ref in seen:
                raise _RefusedError(f"{_place(where)} refers to itself through {' -> '.join([*seen, ref])[:200]}")
            seen[ref] = None
            places.append(place)
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                self._ending.update(places)
                return
            ref = node["$ref"]


class _Widths:
    """Bounds how many alternatives are combined with one another: the core tries all combinations."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._known: dict[int, int] = {}

    def check(self, root: Any) -> None:
        left, seen = [("#", root)], set[int]()
        while left:
            place, node = left.pop()
            if isinstance(node, dict) and id(node) not in seen:
                seen.add(id(node))
                if self._of(node) > MAX_ALTERNATIVES and len([w for w in self._factors(node) if w > 1]) > 1:
                    raise _RefusedError(
                        f"{_place(place)} combines alternatives with alternatives, more than {MAX_ALTERNATIVES} in all"
                    )
                left += [(place + step, child) for step, child in parts(node)]

    def _of(self, node: Any, depth: int = 0) -> int:
        aliases = []
        while isinstance(node, dict) and node.keys() == {"$ref"} and id(node) not in self._known:
            aliases.append(node)  # in no cycle: references were followed to their end
            node = self._resolver.resolve(node["$ref"])[1]
        if not isinstance(node, dict):
            found = 1
        elif id(node) in self._known:
            found = self._known[id(node)]
        elif depth > MAX_DEPTH:
            found = _MANY
        else:
            self._known[id(node)] = 1  # within a cycle
            found = self._known[id(node)] = min(math.prod(self._factors(node, depth + 1)), _MANY)
        for alias in aliases:
            self._known[id(alias)] = found
        return found

    def _factors(self, node: dict[str, Any], depth: int = 0) -> list[int]:
        factors = [sum(self._of(part, depth) for part in node[key]) for key in ("anyOf", "oneOf") if key in node]
        factors += [self._of(part, depth) for part in node.get("allOf", ())]
        if "enum" in node:
            factors.append(len(node["enum"]))
        if "$ref" in node:
            factors.append(self._of(self._resolver.resolve(node["$ref"])[1], depth))
        return factors


def _extent(value: Any) -> tuple[int, int]:
    """How many lists and objects `value` has, and how many stand within one another, to a little over `MAX_DEPTH`."""
    left, found, deepest = [(value, 0)], 0, 0
    while left and deepest <= MAX_DEPTH:
        part, depth = left.pop()
        deepest = max(deepest, depth)
        if isinstance(part, list | dict):
            found += 1
            left += [(v, depth + 1) for v in (part.values() if isinstance(part, dict) else part)]
    return found, deepest


def _exact(value: Any) -> bool:
    """Whether all numbers in `value` are what floating point makes of them."""
    if isinstance(value, list):
        return all(_exact(v) for v in value)
    if isinstance(value, dict):
        return all(_exact(v) for v in value.values())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    try:
        return math.isfinite(value) and (value == 0 or 1e-300 < abs(value) < 1e300) and float(value) == value
    except OverflowError:
        return False


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == kind_of(value)


def short(value: Any) -> str:
    """A value as messages show it."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _place(where: str) -> str:
    text = where if len(where) <= 80 else "..." + where[-77:]
    return "the schema" if text == "#" else text
