"""Whether two JSON schemas exclude each other, which is what lets `oneOf` be read as `anyOf`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferir.runtime.structured.references import BrokenReferenceError, Resolver

MAX_STEPS = 50_000
_ALL = frozenset(("object", "array", "string", "number", "boolean", "null"))
_DEPTH = 70
_SIZES = (("string", "minLength", "maxLength"), ("array", "minItems", "maxItems"))


class Exclusion:
    """Looks for proofs, within a budget; `proven` is False also where there is a proof that was not found."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._left = MAX_STEPS

    def proven(self, a: Any, b: Any, depth: int = 0) -> bool:
        """Whether no value can satisfy both `a` and `b`."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            return False
        left, right = list(self._facets(a)), list(self._facets(b))
        if any(self._apart(x, y, depth) for x in left for y in right):
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

    def _facets(self, schema: Any, depth: int = 0) -> Iterator[Any]:
        """Schemas that all must hold where `schema` does: itself, what it refers to, and the parts of its `allOf`."""
        yield schema
        if not isinstance(schema, dict) or depth > _DEPTH:
            return
        if isinstance(schema.get("$ref"), str):
            try:
                yield from self._facets(self._resolver.resolve(schema["$ref"])[1], depth + 1)
            except BrokenReferenceError:
                return
        for part in schema.get("allOf", ()):
            yield from self._facets(part, depth + 1)

    def _apart(self, a: Any, b: Any, depth: int) -> bool:
        if a is False or b is False:
            return True
        if a is True or b is True:
            return False
        ours, theirs = _types(a), _types(b)
        both = ours & theirs
        if not both:
            return True
        mine, others = _values(a), _values(b)
        if mine is not None and others is not None:
            return {key(v) for v in mine}.isdisjoint(key(v) for v in others)
        for values, schema in ((mine, b), (others, a)):
            if values is not None and all(_lacks(schema, v) for v in values):
                return True
        if both == {"number"} and _ranges_apart(a, b):
            return True
        if any(both == {kind} and _sizes_apart(a, b, low, high) for kind, low, high in _SIZES):
            return True
        return both == {"object"} and self._objects_apart(a, b, depth)

    def _objects_apart(self, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
        for x, y in ((a, b), (b, a)):
            mine, other = x.get("properties", {}), y.get("properties", {})
            for name in x.get("required", ()):
                if name in mine and name in other:
                    if self.proven(mine[name], other[name], depth + 1):
                        return True
                elif name not in other and y.get("additionalProperties") is False and not y.get("patternProperties"):
                    return True
        return False


def key(value: Any) -> Any:
    """Hashable, and equal for values that JSON Schema calls equal."""
    if isinstance(value, bool) or value is None:
        return ("literal", value)
    if isinstance(value, list):
        return ("array", tuple(key(v) for v in value))
    if isinstance(value, dict):
        return ("object", frozenset((k, key(v)) for k, v in value.items()))
    return (_type_of(value), value)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    kinds = schema.get("type", list(_ALL))
    stated = frozenset("number" if k == "integer" else k for k in (kinds if isinstance(kinds, list) else [kinds]))
    values = _values(schema)
    return stated if values is None else stated & {_type_of(v) for v in values}


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names: dict[type, str] = {dict: "object", list: "array", str: "string"}
    return names.get(type(value), "number")


def _lacks(schema: dict[str, Any], value: Any) -> bool:
    """Whether `value` does not satisfy `schema`, by its type, its bounds or its length."""
    kind = _type_of(value)
    if kind not in _types(schema):
        return True
    if kind == "number":
        whole = schema.get("type") == "integer" and value != int(value)
        return whole or _ranges_apart(schema, {"minimum": value, "maximum": value})
    return kind == "string" and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))


def _ranges_apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
    for x, y in ((a, b), (b, a)):
        for top, open_top in (("maximum", False), ("exclusiveMaximum", True)):
            for bottom, open_bottom in (("minimum", False), ("exclusiveMinimum", True)):
                if top in x and bottom in y:
                    if x[top] < y[bottom] or (x[top] == y[bottom] and (open_top or open_bottom)):
                        return True
    return False


def _sizes_apart(a: dict[str, Any], b: dict[str, Any], low: str, high: str) -> bool:
    return any(high in x and x[high] < y.get(low, 0) for x, y in ((a, b), (b, a)))
