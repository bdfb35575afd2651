"""`inferir inspect --html`: one page that shows an artifact and needs nothing else, neither files nor network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from inferir.inspect.artifact_svg import reuse, section_svg
from inferir.inspect.inspect_artifact import (
    ArtifactView,
    bucket_rows,
    buckets_text,
    decision_rows,
    short_provenance,
    summary,
)
from inferir.inspect.memory_table import memory_rows
from inferir.ir.errors import InferirError
from inferir.ir.system import extras
from inferir.ir.system.atomic_file import replace_file
from inferir.ir.system.quantities import size

if TYPE_CHECKING:
    from inferir.inspect.artifact_graph import Run

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
        memory=memory_rows(view.manifest),
        buckets=[(*row[:-1], size(int(row[-1]))) for row in bucket_rows(view.manifest)],
        kernels=[(k, buckets_text(view, k), short_provenance(k.provenance)) for k in view.kernels],
        runs=[] if undrawn else _runs(view),
        undrawn=undrawn,
        files=[(name, size(record.bytes), record.blake3) for name, record in view.manifest.files.items()],
        refusals=view.refusals(),
    )


def write_page(view: ArtifactView, file: Path) -> None:
    """Write the page to `file` as a whole. Raises `InferirError` naming the file if that fails."""
    page = artifact_page(view)
    try:
        replace_file(file, page.encode("utf-8", "backslashreplace"))
    except (OSError, ValueError) as error:
        raise InferirError(f"{file}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _runs(view: ArtifactView) -> list[dict[str, object]]:
    """What the template needs of the kernel graph, section by section."""
    from inferir.inspect.artifact_graph import read_sections

    names: dict[str, list[str]] = {}
    for kernel in view.kernels:
        if kernel.name not in names.setdefault(kernel.region, []):
            names[kernel.region].append(kernel.name)
    runs = read_sections(view.graph_text("kernels"), {k: tuple(v) for k, v in names.items()})
    return [_run(run, number) for number, run in enumerate(runs)]


def _run(run: Run, number: int) -> dict[str, object]:
    """What the template needs of a run: its title, its drawing, and the other sections with the same drawing."""
    regions = run.sections[0].regions
    name = f"section-{number}"
    return {
        "title": run.title,
        "kernels": len(regions),
        "svg": Markup(section_svg(regions, name)),
        "others": [(f"layer {s.layer}", Markup(reuse(regions, name))) for s in run.sections[1:]],
        "open": True,
    }
