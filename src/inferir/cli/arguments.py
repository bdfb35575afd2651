"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value; without `names`, it is called like its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(help: str, *names: str, **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=help, **more)


Artifact = Annotated[Path, typer.Argument(metavar="ART", help="An artifact folder made by `inferir compile`.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face model folder, a GGUF file or a hub id.")]
Json = Annotated[bool, flag("Print one JSON document instead of tables.", "--json")]

Dtype = Annotated[str, option("auto|bf16|f32", "Element type of weights and KV cache; auto: the checkpoint's.")]
Target = Annotated[str, option("NAME", "Processor to compile for; host: this machine's best.")]
MaxModelLen = Annotated[
    int | None, option("N", "Tokens per sequence, prompt and answer. Default: the model's, at most 8192.")
]
MaxNumSeqs = Annotated[int, option("N", "Sequences per step at most.")]
MaxNumBatchedTokens = Annotated[int, option("N", "Tokens per step at most.")]
BlockSize = Annotated[int, option("N", "Token slots per KV-cache block, a multiple of 16.")]
Buckets = Annotated[str | None, option("RANGES", 'Step sizes that get kernels of their own, such as "1,2-8,9-2048".')]
OptLevel = Annotated[
    int,
    option(
        "0..3",
        "Optimisation level, written like a compiler's: -O0 one kernel per operation, -O1 fuse, -O2 keep sums in "
        "float32 inside kernels, -O3 compute the last layer only for rows whose logits are wanted.",
        "-O",
        min=0,
        max=3,
    ),
]
EnablePass = Annotated[
    list[str] | None, option("NAME", "Run a pass of a plug-in, whatever the level says. May be repeated.")
]
DisablePass = Annotated[list[str] | None, option("NAME", "Leave out a pass, whatever the level says. May be repeated.")]
NoTraceCheck = Annotated[
    bool, flag("Do not compare the captured graph with the model's own code first.", "--no-trace-check")
]
Jobs = Annotated[int | None, option("N", "Build processes. Default: one per processor.", min=1)]
NoCache = Annotated[bool, flag("Neither read nor write the compile cache.", "--no-cache")]
Revision = Annotated[str | None, option("REV", "Branch, tag or commit of a hub id.")]
TrustRemoteCode = Annotated[bool, flag("Run Python code that comes with the model.", "--trust-remote-code")]

Threads = Annotated[int | None, option("N", "Compute threads. Default: one per usable processor.")]
KvCacheMemory = Annotated[
    str | None, option("SIZE", 'KV-cache memory, such as "512MiB". Default: what the request needs.')
]
MaxTokens = Annotated[int | None, option("N", "Generate at most N tokens. Default: until the answer ends.", min=1)]
Temperature = Annotated[float, option("X", "0 takes the most likely token each time.", min=0)]
Seed = Annotated[int | None, option("N", "Makes draws with a temperature repeatable.")]
