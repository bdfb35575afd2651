"""Other ways in which tools write what the rest of this package knows under one name only."""

from __future__ import annotations

from typing import Any

from inferir.runtime.structured.references import BrokenReferenceError, Resolver, mapped

_WORDS = ("discriminator", "propertyNames", "not", "items")
_LENGTHS = ("minLength", "maxLength")
_SAYS_NOTHING = ("title", "description", "default", "examples", "deprecated", "$comment")


def plain(schema: Any, text: str) -> Any:
    """`schema`, whose JSON text is `text`, in plain keywords; itself if it has no others. What has no plain form stays.

    - `oneOf` with a `discriminator` requires the named property in each part, as OpenAPI says.
    - `propertyNames` that lists names becomes `properties`; one with a pattern or lengths, `patternProperties`.
    - `{"not": {}}` is `false`; `items` with a list, as before 2020-12, is `prefixItems`, and `additionalItems` `items`.
    """
    return _Plain(schema).of(schema) if any(f'"{word}"' in text for word in _WORDS) else schema


class _Plain:
    def __init__(self, root: Any) -> None:
        self._resolver = Resolver(root)

    def of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") is True or schema.get("not") == {}:
            return False
        out = mapped(schema, self.of)
        _tagged(out)
        _tuple(out)
        self._named(out)
        return out

    def _named(self, out: dict[str, Any]) -> None:
        """Plain keywords for `propertyNames`."""
        names = self._names(out.get("propertyNames"))
        if names is None:
            return
        others = out.get("additionalProperties", True)
        if isinstance(names, str):
            if out.get("properties") or out.get("patternProperties"):
                return
            if names:
                out |= {"patternProperties": {names: others}, "additionalProperties": False}
        elif out.get("patternProperties"):
            return
        else:
            given = out.get("properties", {})
            if not isinstance(given, dict):
                return
            listed = {name: part for name, part in given.items() if name in names}
            out["properties"] = {**listed, **({} if others is False else {n: others for n in names if n not in listed})}
            out["additionalProperties"] = False
        del out["propertyNames"]

    def _names(self, schema: Any) -> str | list[str] | None:
        """A pattern of the names that `schema` allows, "" for all, or a list of them; None if there is no telling."""
        for _ in range(10):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            try:
                schema = self._resolver.resolve(schema["$ref"])[1]
            except (BrokenReferenceError, TypeError, AttributeError):
                return None
        if schema is True:
            return ""
        if not isinstance(schema, dict) or schema.get("type", "string") != "string":
            return None
        keys = schema.keys() - {"type", *_SAYS_NOTHING}
        if not keys:
            return ""
        if keys == {"enum"} and isinstance(schema["enum"], list):
            return [name for name in schema["enum"] if isinstance(name, str)]
        if keys == {"const"}:
            return [schema["const"]] if isinstance(schema["const"], str) else []
        if keys == {"pattern"} and isinstance(schema["pattern"], str):
            return schema["pattern"] or None
        low, high = (schema.get(key) for key in _LENGTHS)
        if keys <= set(_LENGTHS) and all(type(n) is int and 0 <= n <= 10_000 for n in (low or 0, high or 0)):
            return f"^[\\s\\S]{{{low or 0},{'' if high is None else high}}}$"
        return None


def _tagged(out: dict[str, Any]) -> None:
    """Require the property of a discriminator."""
    tag = out.get("discriminator")
    name = tag.get("propertyName") if isinstance(tag, dict) else None
    if not isinstance(name, str) or not isinstance(out.get("oneOf"), list):
        return
    for i, part in enumerate(out["oneOf"]):
        required = part.get("required", []) if isinstance(part, dict) else None
        if isinstance(required, list) and name not in required:
            out["oneOf"][i] = {**part, "required": [*required, name]}


def _tuple(out: dict[str, Any]) -> None:
    """Plain keywords for a list of items."""
    if not isinstance(out.get("items"), list) or "prefixItems" in out:
        return
    listed, others = out.pop("items"), out.pop("additionalItems", True)
    if listed:
        out["prefixItems"] = listed
    if others is not True:
        out["items"] = others
