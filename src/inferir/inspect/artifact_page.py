"""`inferir inspect --html`: one page that shows an artifact and needs nothing else, neither files nor network."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from inferir.inspect.artifact_svg import reuse, section_svg
from inferir.inspect.inspect_artifact import (
    ArtifactView,
    bucket_rows,
    buckets_text,
    decision_rows,
    plugin_rows,
    short_provenance,
    summary,
)
from inferir.inspect.memory_table import memory_rows
from inferir.ir.system import extras
from inferir.ir.system.quantities import size
from inferir.ir.system.text_file import write_file

_TEMPLATE = Path(__file__).with_name("artifact_page.html")


def artifact_page(view: ArtifactView) -> str:
    """The page, as well-formed HTML; without drawings of the graph where its reader is not installed.

    Raises `ArtifactError` or `ParseError` if the artifact's graph cannot be read."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    undrawn = extras.lacks("compile")
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        view=view,
        model=view.manifest.model,
        total=size(view.nbytes),
        summary=summary(view),
        decisions=decision_rows(view.manifest.model.decisions),
        plugins=plugin_rows(view.manifest),
        memory=memory_rows(view.manifest),
        buckets=bucket_rows(view.manifest),
        kernels=[(k, buckets_text(view, k), short_provenance(k.provenance)) for k in view.kernels],
        runs=[] if undrawn else _runs(view),
        undrawn=undrawn,
        files=[(name, size(record.bytes), record.blake3) for name, record in view.manifest.files.items()],
        refusals=view.refusals(),
    )


def write_page(view: ArtifactView, file: Path) -> None:
    """Write the page to `file` as a whole. Raises `InferirError` naming the file if that fails."""
    write_file(file, artifact_page(view).encode("utf-8", "backslashreplace"))


def _runs(view: ArtifactView) -> list[dict[str, object]]:
    """What the template needs of the kernel graph, run by run: its drawing, and the sections that look alike."""
    from inferir.inspect.artifact_graph import read_sections

    names: dict[str, list[str]] = {}
    for kernel in view.kernels:
        if kernel.name not in names.setdefault(kernel.region, []):
            names[kernel.region].append(kernel.name)
    runs = read_sections(view.graph_text("kernels"), {k: tuple(v) for k, v in names.items()})
    return [
        {
            "title": run.title,
            "kernels": len(run.sections[0].regions),
            "svg": Markup(section_svg(run.sections[0].regions, f"section-{number}")),
            "others": [
                (f"layer {s.layer}", Markup(reuse(run.sections[0].regions, f"section-{number}")))
                for s in run.sections[1:]
            ],
        }
        for number, run in enumerate(runs)
    ]
