"""Where the parts of a JSON schema are, and what its references lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

BRANCHES = ("anyOf", "oneOf", "allOf")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LISTED = (*BRANCHES, "prefixItems")
SINGLE = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")


_KINDS = {dict: "object", list: "array", tuple: "array", str: "string", bool: "boolean", type(None): "null"}


def kind_of(value: Any) -> str:
    """The name of a value's JSON type."""
    return _KINDS.get(type(value), "number")


def type_names(value: Any) -> list[Any]:
    """The types of a `type`, which names one or lists several."""
    return value if isinstance(value, list) else [value]


class BrokenReferenceError(Exception):
    """A reference that leads nowhere; the message goes on from "refers to"."""


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within `schema`, with their places as JSON pointers."""
    for key in NAMED:
        named = schema.get(key)
        if isinstance(named, dict):
            for name, child in named.items():
                yield f"/{key}/{_escaped(name)}", child
    for key in LISTED:
        listed = schema.get(key)
        if isinstance(listed, list):
            for i, child in enumerate(listed):
                yield f"/{key}/{i}", child
    for key in SINGLE:
        if key in schema:
            yield f"/{key}", schema[key]


def mapped(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of `schema` in which `change` has replaced the schemas directly within."""
    out = dict(schema)
    for key in NAMED:
        if isinstance(out.get(key), dict):
            out[key] = {name: change(part) for name, part in out[key].items()}
    for key in LISTED:
        if isinstance(out.get(key), list):
            out[key] = [change(part) for part in out[key]]
    for key in (*SINGLE, "additionalItems"):  # lists of items and the key beside them come from before 2020-12
        if key in out:
            out[key] = [change(part) for part in out[key]] if isinstance(out[key], list) else change(out[key])
    return out


class Resolver:
    """Follows the references of one schema; nothing is fetched."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._base = str(root.get("$id", "")).rstrip("#") if isinstance(root, dict) else ""
        self._anchors: dict[str, tuple[str, Any]] | None = None

    def resolve(self, ref: str) -> tuple[str, Any]:
        """The place that `ref` leads to, as a JSON pointer with "#", and the schema there.

        Raises `BrokenReferenceError` if it leads out of the schema, to nothing, or to what is no schema.
        """
        shown = ref if len(ref) <= 80 else ref[:77] + "..."
        if self._base and (ref == self._base or ref.startswith(self._base + "#")):
            ref = ref[len(self._base) :] or "#"
        if not ref.startswith("#"):
            raise BrokenReferenceError(f"{shown!r}; only references inside the schema are followed")
        pointer = unquote(ref[1:])
        if pointer and not pointer.startswith("/"):
            found = self._anchor(pointer)
            if found is None:
                raise BrokenReferenceError(f"{shown!r}, which does not exist")
            return found
        node, place = self.root, "#"
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isascii() and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise BrokenReferenceError(f"{shown!r}, which does not exist")
            place += f"/{part}"
        if not isinstance(node, dict | bool):
            raise BrokenReferenceError(f"{shown!r}, which is not a schema")
        return place, node

    def _anchor(self, name: str) -> tuple[str, Any] | None:
        if self._anchors is None:
            self._anchors = {}
            left: list[tuple[str, Any]] = [("#", self.root)]
            while left:
                place, node = left.pop()
                if isinstance(node, dict):
                    if isinstance(node.get("$anchor"), str):
                        self._anchors.setdefault(node["$anchor"], (place, node))
                    left += [(place + step, child) for step, child in parts(node)]
        return self._anchors.get(name)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
