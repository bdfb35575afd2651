"""Closed objects: schemas whose objects have the keys that they name and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferir.runtime.structured.references import BRANCHES, BrokenReferenceError, Resolver, mapped, parts

_SAY_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")


def closed(schema: Any) -> Any:
    """`schema` (parsed JSON) with `additionalProperties: false` in every object that names properties and says nothing
    of others.

    Objects that several schemas describe together (`allOf`, or keywords beside references and alternatives) stay as
    they are, since each of them would forbid what the others name.
    """
    try:
        return _Closer(schema).of(schema)
    except RecursionError:
        return schema  # refused for its depth where it is checked


class _Closer:
    def __init__(self, root: Any) -> None:
        self._resolver = Resolver(root)
        self._shared: set[int] = set()
        self._find(root)

    def _find(self, schema: Any) -> None:
        """Remember schemas that describe an object together with others."""
        if not isinstance(schema, dict):
            return
        sources = list(self._sources(schema))
        if len(sources) + ("properties" in schema) > 1:
            self._share(schema)
        for _, part in parts(schema):
            self._find(part)

    def _sources(self, schema: dict[str, Any]) -> Iterator[list[Any]]:
        """For each reference, part of `allOf` and list of alternatives: the schemas that it brings to the place."""
        if isinstance(schema.get("$ref"), str):
            try:
                yield [self._resolver.resolve(schema["$ref"])[1]]
            except BrokenReferenceError:
                yield []
        for key in BRANCHES:
            listed = schema.get(key)
            if isinstance(listed, list):
                yield from ([part] for part in listed) if key == "allOf" else [listed]

    def _share(self, schema: Any) -> None:
        if not isinstance(schema, dict) or id(schema) in self._shared:
            return
        self._shared.add(id(schema))
        for source in self._sources(schema):
            for part in source:
                self._share(part)

    def of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        out = mapped(schema, self.of)
        if "properties" in schema and id(schema) not in self._shared and not any(k in schema for k in _SAY_OTHERS):
            out["additionalProperties"] = False
        return out
