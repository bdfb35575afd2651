"""`inferir compile MODEL -o ART`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.shared_options import Fields, compile_fields, expanded
from inferir.ir.system import extras


@expanded(options=compile_fields)
def command(
    model: a.Model,
    output: Annotated[Path, a.option("ART", "Folder to write the artifact to.", "-o", "--output")],
    *,
    options: Fields,
    print_ir_after: Annotated[
        str | None, a.option("NAME|all", "Print the graph after a pass, or after every pass.")
    ] = None,
    dump_dir: Annotated[
        Path | None, a.option("DIR", "Write the graph after every pass and all stages of kernels here.")
    ] = None,
    tuning: Annotated[Path | None, a.option("FILE", "Use the tiles that `inferir tune` recorded here.")] = None,
    override: Annotated[
        Path | None, a.option("DIR", "Take stages of kernels from BUCKET/FILE below this folder.")
    ] = None,
    jobs: a.Jobs = None,
    no_cache: a.NoCache = False,
    json: a.Json = False,
) -> None:
    """Compile a model into an artifact: trace, optimise, generate kernels for every bucket, pack the weights."""
    extras.require("compile", "compile")
    from inferir.cli.compile_report import RecordingCache, as_json, print_report
    from inferir.cli.console import print_json, progress_bars
    from inferir.codegen.cache.compile_cache import CacheOptions
    from inferir.compile.compiler import CompileOptions, DebugOptions, compile_model

    _check_pass(print_ir_after)
    emit: Any = (lambda text: print(text, file=sys.stderr)) if json else print
    debug = DebugOptions(print_after=print_ir_after, dump_dir=dump_dir, emit=emit)
    cache = RecordingCache.from_env(CacheOptions(enabled=not no_cache))
    assert isinstance(cache, RecordingCache)
    with progress_bars() as progress:
        report = compile_model(
            model,
            output,
            CompileOptions(**options, tuning=tuning, override=override, jobs=jobs),
            cache=cache,
            debug=debug,
            progress=progress,
        )
    if json:
        print_json(as_json(report, cache))
    else:
        print_report(report, cache)


def _check_pass(name: str | None) -> None:
    """Refuse an unknown pass before the model is loaded."""
    from inferir.ir.errors import PassError
    from inferir.passes.pipeline import pass_names

    if name not in (None, "all", *pass_names()):
        raise PassError(f"--print-ir-after: there is no pass named {name!r}; passes are {', '.join(pass_names())}")
