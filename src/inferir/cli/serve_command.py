"""`inferir serve ART`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from inferir.cli import arguments as a
from inferir.ir.errors import InferirError
from inferir.ir.system.text_file import read_text

LOG_LEVELS = ("debug", "info", "warning", "error")


def serve(
    artifact: a.Artifact,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    uds: Annotated[
        str | None, typer.Option(metavar="PATH", help="Listen on a Unix socket at this path instead.")
    ] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Key that inference needs. May be repeated.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with such keys, one per line; hidden from `ps`.")
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name that requests give as model. May be repeated. Default: the model's."),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jinja chat template to use instead of the artifact's.")
    ] = None,
    special_tokens_in_messages: Annotated[
        bool,
        typer.Option(
            "--allow-special-tokens-in-messages",
            help="Let text of messages that spells a control token become one, as in prompts of completions.",
        ),
    ] = False,
    tool_style: Annotated[
        str,
        typer.Option(metavar="auto|hermes|json", help="How the model writes tool calls; auto: as its template does."),
    ] = "auto",
    exclude_tools_when_tool_choice_none: Annotated[
        bool,
        typer.Option(
            "--exclude-tools-when-tool-choice-none",
            help='Leave the tools out of the prompt where tool_choice is "none".',
        ),
    ] = False,
    generation_config: Annotated[
        str,
        typer.Option(metavar="auto|none", help="Whether requests get what the model recommends for sampling."),
    ] = "auto",
    kv_cache_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help='KV-cache memory, such as "2GiB". Default: half the free memory.')
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Requests that run at once.")] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens per step at most. Default: the artifact's limit, 256 among several requests."
        ),
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(metavar="N", help="Tokens per request at most.")] = None,
    threads: a.Threads = None,
    scheduling_policy: Annotated[
        str, typer.Option(metavar="fcfs|priority", help="Who is served first; lower priorities go first.")
    ] = "fcfs",
    prefix_caching: Annotated[
        bool, typer.Option("--enable-prefix-caching/--no-prefix-caching", help="Reuse the cache of equal beginnings.")
    ] = True,
    max_waiting: Annotated[
        int, typer.Option(metavar="N", min=0, help="Requests that may wait; more are refused with status 429.")
    ] = 2048,
    grace: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds that running requests get after SIGTERM.")
    ] = 30.0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse requests with unknown fields.")] = False,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin that browsers may call from. May be repeated. Default: any."),
    ] = None,
    metrics_prefix: Annotated[
        str, typer.Option(metavar="NAME", help="Stands before the colon in names of metrics.")
    ] = "inferir",
    allow_route: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Open this route of an installed plug-in. May be repeated."),
    ] = None,
    stat_sink: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Tell this sink of an installed plug-in how the engine is. May be repeated."),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="|".join(LOG_LEVELS), help="How much is logged.")] = "info",
) -> None:
    """Serve an artifact over HTTP with the OpenAI API, metrics and a chat page."""
    if log_level not in LOG_LEVELS:
        raise typer.BadParameter(f"choose one of {', '.join(LOG_LEVELS)}", param_hint="--log-level")
    logging.getLogger("inferir").setLevel(log_level.upper())
    engine = {
        "kv_cache_memory": kv_cache_memory,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "threads": threads,
        "scheduling_policy": scheduling_policy,
        "enable_prefix_caching": prefix_caching,
        "max_waiting": max_waiting,
    }
    from inferir.runtime.sampling.sampling_defaults import CHOICES
    from inferir.runtime.text.tool_style import STYLES, style
    from inferir.server.serve import serve as run
    from inferir.server.server_options import ServerOptions

    for name, value, choices in (
        ("--tool-style", tool_style, ("auto", *STYLES)),
        ("--generation-config", generation_config, CHOICES),
    ):
        if value not in choices:
            raise typer.BadParameter(f"choose one of {', '.join(choices)}", param_hint=name)
    run(
        ServerOptions(
            artifact=artifact,
            host=host,
            port=port,
            uds=uds,
            api_keys=(*(k.strip() for k in api_key or ()), *_keys(api_key_file)),
            served_names=tuple(served_model_name or ()),
            chat_template=chat_template,
            tool_style=style(tool_style),
            hide_unused_tools=exclude_tools_when_tool_choice_none,
            special_tokens_in_messages=special_tokens_in_messages,
            generation_config=generation_config,
            grace=grace,
            strict=strict,
            origins=tuple(allowed_origin or ("*",)),
            metrics_prefix=metrics_prefix,
            routes=tuple(allow_route or ()),
            stat_sinks=tuple(stat_sink or ()),
            engine={k: v for k, v in engine.items() if v is not None},
        )
    )


def _keys(path: Path | None) -> list[str]:
    """Non-empty lines of a file. A file without any would leave the server open, so it is refused."""
    if path is None:
        return []
    keys = [line.strip() for line in read_text(path, "--api-key-file").splitlines() if line.strip()]
    if not keys:
        raise InferirError(f"--api-key-file {path}: has no key, which would leave the server open")
    return keys
