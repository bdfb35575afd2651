"""Whether two JSON schemas exclude each other, which is what lets `oneOf` be read as `anyOf`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

from inferir.runtime.structured.references import BrokenReferenceError, Resolver, kind_of, type_names

MAX_STEPS = 100_000
MAX_FACETS = 64
_ALL = frozenset(("object", "array", "string", "number", "boolean", "null"))
_DEPTH = 70
_APART_FORMATS = {"date", "date-time", "time", "duration", "email", "ipv4", "uuid"}  # no text has two of them
_SIZES = (("string", "minLength", "maxLength"), ("array", "minItems", "maxItems"))


class Exclusion:
    """Looks for proofs, within a budget; `proven` is False also where there is a proof that was not found.

    left: what is left of the budget; below 0 it is used up.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.left = MAX_STEPS

    def proven(self, a: Any, b: Any, depth: int = 0) -> bool:
        """Whether no value can satisfy both `a` and `b`."""
        left, right = self._facets(a), self._facets(b)
        self.left -= len(left) * len(right)
        if self.left < 0 or depth > _DEPTH:
            return False
        required = _required(left) | _required(right)
        if any(self._apart(x, y, required, depth) for x in left for y in right):
            return True
        return self._branches(left, b, depth) or self._branches(right, a, depth)

    def _branches(self, facets: list[Any], other: Any, depth: int) -> bool:
        """Whether some `anyOf` or `oneOf` has only parts that exclude `other`."""
        return any(
            bool(facet[key]) and all(self.proven(part, other, depth + 1) for part in facet[key])
            for facet in facets
            if isinstance(facet, dict)
            for key in ("anyOf", "oneOf")
            if isinstance(facet.get(key), list)
        )

    def unproven(self, parts: list[Any]) -> tuple[int, int] | None:
        """Two of `parts` for which there is no proof; None if all exclude one another."""
        tags = [self._tags(part) for part in parts]
        for name in set(tags[0]).intersection(*tags[1:]):
            if _all_differ([key(v) for v in tag[name]] for tag in tags):
                return None
        listed: dict[Any, int] = {}  # which part lists a value; lists are compared all at once
        lists = [isinstance(part, dict) and _values(part) is not None for part in parts]
        for i, part in enumerate(parts):
            for value in _values(part) or () if lists[i] else ():
                first = listed.setdefault(key(value), i)
                if first != i and not self.proven(parts[first], part):
                    return first, i
        others = [i for i, is_list in enumerate(lists) if not is_list]
        for i in others:
            for j in range(len(parts)):
                if (lists[j] or j < i) and not self.proven(parts[j], parts[i]):
                    return min(i, j), max(i, j)
        return None

    def _tags(self, part: Any) -> dict[str, list[Any]]:
        """Properties that objects of `part` must have, each with one of listed values; none if it allows more."""
        facets = [f for f in self._facets(part) if isinstance(f, dict)]
        required = _required(facets)
        if not any(_types(f) == {"object"} for f in facets):
            return {}
        found: dict[str, list[Any]] = {}
        for facet in facets:
            for name, value in facet.get("properties", {}).items():
                values = _values(value) if isinstance(value, dict) and name in required else None
                if values is not None:
                    found[name] = values
        return found

    def _facets(self, schema: Any) -> list[Any]:
        """Schemas that all must hold where `schema` does: itself, what it refers to, and the parts of its `allOf`."""
        found: list[Any] = []
        left, seen = [schema], set[int]()
        while left and len(found) < MAX_FACETS:
            part = left.pop()
            if id(part) in seen:
                continue
            found.append(part)
            seen.add(id(part))
            if isinstance(part, dict):
                left += part.get("allOf", ())
                if isinstance(part.get("$ref"), str):
                    with contextlib.suppress(BrokenReferenceError):
                        left.append(self._resolver.resolve(part["$ref"])[1])
        self.left -= len(found)
        return found

    def _apart(self, a: Any, b: Any, required: set[str], depth: int) -> bool:
        """Whether no value satisfies `a` and `b`; an object must have the keys `required` to satisfy all that holds."""
        if a is False or b is False:
            return True
        if a is True or b is True:
            return False
        ours, theirs = _types(a), _types(b)
        both = ours & theirs
        if not both:
            return True
        mine, others = _values(a), _values(b)
        self.left -= (len(mine or ()) + len(others or ())) // 8
        if mine is not None and others is not None:
            return {key(v) for v in mine}.isdisjoint(key(v) for v in others)
        for values, schema in ((mine, b), (others, a)):
            if values is not None and all(_lacks(schema, v) for v in values):
                return True
        if both == {"number"} and _ranges_apart(a, b):
            return True
        if any(both == {kind} and _sizes_apart(a, b, low, high) for kind, low, high in _SIZES):
            return True
        if both == {"string"} and len({a.get("format"), b.get("format")} & _APART_FORMATS) == 2:
            return True
        return both == {"object"} and self._objects_apart(a, b, required, depth)

    def _objects_apart(self, a: dict[str, Any], b: dict[str, Any], required: set[str], depth: int) -> bool:
        mine, other = a.get("properties", {}), b.get("properties", {})
        for name in required:
            if name in mine and name in other and self.proven(mine[name], other[name], depth + 1):
                return True
            for x, listed in ((a, mine), (b, other)):
                if name not in listed and x.get("additionalProperties") is False and not x.get("patternProperties"):
                    return True
        return False


def _all_differ(lists: Iterable[list[Any]]) -> bool:
    """Whether no value is in two lists."""
    found = [set(values) for values in lists]
    return len(set().union(*found)) == sum(map(len, found))


def _required(facets: list[Any]) -> set[str]:
    return {name for facet in facets if isinstance(facet, dict) for name in facet.get("required", ())}


def key(value: Any) -> Any:
    """Hashable, and equal for values that JSON Schema calls equal."""
    if isinstance(value, bool) or value is None:
        return ("literal", value)
    if isinstance(value, list):
        return ("array", tuple(key(v) for v in value))
    if isinstance(value, dict):
        return ("object", frozenset((k, key(v)) for k, v in value.items()))
    return (kind_of(value), value)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    stated = frozenset("number" if k == "integer" else k for k in type_names(schema.get("type", list(_ALL))))
    values = _values(schema)
    return stated if values is None else stated & {kind_of(v) for v in values}


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _lacks(schema: dict[str, Any], value: Any) -> bool:
    """Whether `value` does not satisfy `schema`, by its type, its bounds or its length."""
    kind = kind_of(value)
    if kind not in _types(schema):
        return True
    if kind == "number":
        whole = schema.get("type") == "integer" and value != int(value)
        return whole or _ranges_apart(schema, {"minimum": value, "maximum": value})
    return kind == "string" and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))


def _ranges_apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tops, bottoms = ("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")
    for (x, y), top, bottom in itertools.product(((a, b), (b, a)), tops, bottoms):
        if top in x and bottom in y:
            if x[top] < y[bottom] or (x[top] == y[bottom] and (top, bottom) != (tops[0], bottoms[0])):
                return True
    return False


def _sizes_apart(a: dict[str, Any], b: dict[str, Any], low: str, high: str) -> bool:
    return any(high in x and x[high] < y.get(low, 0) for x, y in ((a, b), (b, a)))
