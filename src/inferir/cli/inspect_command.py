"""`inferir inspect ART`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from inferir.cli import arguments as a
from inferir.cli.command_failures import warn
from inferir.cli.console import plain, print_json, show, table
from inferir.ir.system import extras
from inferir.ir.system.quantities import size

if TYPE_CHECKING:
    from inferir.inspect.inspect_artifact import ArtifactView


class Graph(StrEnum):
    """The graphs that an artifact keeps for people."""

    captured = "captured"
    kernels = "kernels"


def inspect(
    artifact: a.Artifact,
    ir: Annotated[Graph | None, a.flag("Print a graph as IR text and nothing else.", "--ir")] = None,
    html: Annotated[Path | None, a.option("FILE", "Write a page that shows all of it; it needs no other file.")] = None,
    json: a.Json = False,
) -> None:
    """Show what is in an artifact: model, target, memory, buckets, kernels, graphs."""
    from inferir.inspect.inspect_artifact import as_json, view_artifact

    view = view_artifact(artifact)
    if html is not None:
        from inferir.inspect.artifact_page import write_page

        write_page(view, html)
        if (reason := extras.lacks("compile")) is not None:
            warn(f"{html} does not show the graph: drawing it needs {reason}")
    if ir is not None:
        print(view.graph_text(ir.value), end="")
    elif json:
        print_json(as_json(view))
    elif html is None:
        _print(view)


def _print(view: ArtifactView) -> None:
    from inferir.inspect.inspect_artifact import (
        bucket_rows,
        buckets_text,
        decision_rows,
        plugin_rows,
        short_provenance,
        summary,
    )
    from inferir.inspect.memory_table import memory_rows

    kernels = [
        (k.title, str(k.calls_per_step), k.tile_text, buckets_text(view, k), short_provenance(k.provenance))
        for k in view.kernels
    ]
    refused = len(view.refusals())
    plugins = plugin_rows(view.manifest)
    show(
        table(f"{view.path}: {size(view.nbytes)}", ("", ""), summary(view)),
        table("What decided", ("what", "value", "found in"), decision_rows(view.manifest.model.decisions)),
        *([table("Plug-ins that took part", ("kind", "name", "from", "needed", "did"), plugins)] if plugins else []),
        table("Memory when served", ("what", "size", "note"), memory_rows(view.manifest), right=("size",)),
        table(
            "Buckets",
            ("bucket", "tokens", "steps", "kernels", "calls", "library"),
            bucket_rows(view.manifest),
            right=("tokens", "kernels", "calls", "library"),
        ),
        table("Kernels", ("kernel", "calls", "tile", "buckets", "computes"), kernels, right=("calls",)),
        plain(f"{refused} fusions were considered and refused (--json and --html list them). --ir kernels: the graph."),
    )
