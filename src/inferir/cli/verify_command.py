"""`inferir verify ART`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferir.cli import arguments as a
from inferir.ir.system import extras


def verify(
    artifact: a.Artifact,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that the artifact was compiled from. Default: a folder or GGUF file of its name, here or "
            "beside the artifact.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short sequences and few of them: a fraction of the time.")
    ] = False,
    threads: a.Threads = None,
    revision: a.Revision = None,
    trust_remote_code: a.TrustRemoteCode = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a JUnit XML report.")] = None,
    json: a.Json = False,
) -> None:
    """Compare an artifact with Hugging Face's eager code on the same weights; exit status 1 if it is out of bounds."""
    extras.require("verify", "compile")
    from inferir.cli.console import print_json
    from inferir.cli.progress import progress_bars
    from inferir.cli.verify_report import as_json, print_report, write_junit
    from inferir.verify.verify_artifact import verify_artifact

    with progress_bars() as progress:
        report = verify_artifact(
            artifact,
            model,
            quick=quick,
            threads=threads,
            progress=progress,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    if junit is not None:
        write_junit(report, junit)
    if json:
        print_json(as_json(report))
    else:
        print_report(report)
    if not report.passed:
        raise typer.Exit(1)
