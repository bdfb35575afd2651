"""The one name a model is shown and served under, from whatever it was given as."""

from __future__ import annotations

import os
import re

FALLBACK = "model"
_SNAPSHOT = re.compile(r"(?:^|/)models--([^/]+)/snapshots/[^/]+$")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]+")


def display_name(path: str | os.PathLike[str], hub_id: str | None = None) -> str:
    """A short name without path, never empty.

    A hub id keeps its organisation, as does a snapshot in the hub's own cache. A folder keeps its whole name; of a file
    only `.gguf` and the number of a part go. `.`, `..` and trailing slashes are resolved, symbolic links are not: the
    name is the one that the user gave. Bytes that are not UTF-8 and control characters become `_`.
    """
    place = os.path.abspath(os.fspath(path))
    name = os.path.basename(place)
    if hub_id is not None:
        name = hub_id
    elif os.path.isdir(place):
        found = _SNAPSHOT.search(place)
        name = "/".join(found[1].split("--")) if found else name
    elif name.lower().endswith(".gguf"):
        name = _SHARD.sub("", name[: -len(".gguf")])
    return readable(name).strip() or FALLBACK


def readable(name: str) -> str:
    """A file's name as it can be printed and stored: bytes that are not UTF-8 and control characters become `_`."""
    return _UNPRINTABLE.sub("_", name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
