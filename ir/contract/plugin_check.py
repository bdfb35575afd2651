"""Whether what an artifact needs of other distributions is installed where it is served."""

from __future__ import annotations

from collections.abc import Iterable

from inferir.ir.contract.manifest import PluginRecord
from inferir.ir.errors import ArtifactError
from inferir.ir.plugin_registry import PluginRegistry

NOUNS = {"kv": "KV cache kind", "executors": "executor"}


def check_plugins(records: Iterable[PluginRecord]) -> None:
    """Raise `ArtifactError` naming the first entry that serving needs and no installed distribution has, and whose it
    was. Imports nothing; what only took part in compiling is not asked for.
    """
    for record in records:
        if record.serves and PluginRegistry(record.kind, record.kind).outside(record.name) is None:
            noun = NOUNS.get(record.kind, record.kind)
            raise ArtifactError(
                f"the artifact needs the {noun} {record.name!r} of {record.distribution} {record.version}, "
                f"which is not installed here; install {record.distribution}"
            )
