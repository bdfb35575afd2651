"""`inferir doctor [ART]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from inferir.cli import arguments as a
from inferir.cli.console import print_json, progress_bars


def doctor(
    artifact: Annotated[
        Path | None, typer.Argument(metavar="[ART]", help="An artifact folder to examine as well.", show_default=False)
    ] = None,
    port: Annotated[int, a.option("N", "Port of the server that is tried; 0 takes a free one.", min=0, max=65535)] = 0,
    quick: Annotated[bool, a.flag("Compile and serve nothing: a second instead of ten.", "--quick")] = False,
    driver_record: Annotated[
        Path | None,
        a.option("FILE", "Text of /proc/driver/nvidia/version, such as of the machine that is to serve."),
    ] = None,
    json: a.Json = False,
) -> None:
    """Test this installation layer by layer, and say what to do; exit status 1 if anything failed."""
    from inferir.doctor.finding import STATES
    from inferir.doctor.self_test import DoctorOptions, self_test
    from inferir.ir.contract.gpu_driver import RECORD

    options = DoctorOptions(artifact=artifact, port=port, quick=quick, driver_record=driver_record or RECORD)
    with progress_bars() as progress:
        findings = self_test(options, progress or (lambda layer, done, total: None))
    failed = any(f.state == "failed" for f in findings)
    if json:
        print_json({"passed": not failed, "findings": [asdict(f) for f in findings]})
    else:
        for f in findings:
            advice = f"; {f.advice}" if f.advice else ""
            print(f"{f.state:<7}  {f.layer}: {f.name}: {f.message}{advice}")
        counts = Counter(f.state for f in findings)
        print(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]))
    if failed:
        raise typer.Exit(1)
