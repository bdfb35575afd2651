"""The forms of a request's target (RFC 9112, 3.2): what stands for a path in each."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Scope

_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


def origin_form(scope: Scope) -> Scope:
    """`scope` with the path alone, if its target was a whole address, as those of requests to a proxy are."""
    if scope["path"].startswith("/"):
        return scope
    raw: bytes = scope["raw_path"]
    found = _ABSOLUTE.match(raw)
    if found is None:
        return scope
    rest = raw[found.end() :]
    if not rest and scope["method"] == "OPTIONS":
        return {**scope, "path": "*", "raw_path": b"*"}
    rest = rest or b"/"
    return {**scope, "path": unquote(rest.decode("ascii")), "raw_path": rest}
