"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Artifact = Annotated[Path, typer.Argument(metavar="ART", help="An artifact folder made by `inferir compile`.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face model folder, a GGUF file or a hub id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]

Dtype = Annotated[
    str, typer.Option(metavar="auto|bf16|f32", help="Element type of weights and KV cache; auto: the checkpoint's.")
]
Target = Annotated[str, typer.Option(metavar="NAME", help="Processor to compile for; host: this machine's best.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens per sequence, prompt and answer. Default: the model's, at most 8192."),
]
MaxNumSeqs = Annotated[int, typer.Option(metavar="N", help="Sequences per step at most.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(metavar="N", help="Tokens per step at most.")]
BlockSize = Annotated[int, typer.Option(metavar="N", help="Token slots per KV-cache block, a multiple of 16.")]
Buckets = Annotated[
    str | None,
    typer.Option(metavar="RANGES", help='Step sizes that get kernels of their own, such as "1,2-8,9-2048".'),
]
OptLevel = Annotated[
    int,
    typer.Option(
        "-O",
        metavar="0..3",
        min=0,
        max=3,
        help="Optimisation level, written like a compiler's: -O0 one kernel per operation, -O1 fuse, -O2 keep sums in "
        "float32 inside kernels, -O3 compute the last layer only for rows whose logits are wanted.",
    ),
]
DisablePass = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Leave out a pass, whatever the level says. May be repeated."),
]
NoTraceCheck = Annotated[
    bool, typer.Option("--no-trace-check", help="Do not compare the captured graph with the model's own code first.")
]
Jobs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Build processes. Default: one per processor.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the compile cache.")]
Revision = Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a hub id.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]

Threads = Annotated[int | None, typer.Option(metavar="N", help="Compute threads. Default: one per usable processor.")]
KvCacheMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help='KV-cache memory, such as "512MiB". Default: what the request needs.')
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Generate at most N tokens. Default: until the answer ends.")
]
Temperature = Annotated[float, typer.Option(metavar="X", min=0, help="0 takes the most likely token each time.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Makes draws with a temperature repeatable.")]
