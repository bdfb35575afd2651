"""`inferir serve ART`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferir.cli import arguments as a
from inferir.cli.shared_options import Fields, expanded
from inferir.ir.errors import InferirError
from inferir.ir.system.log_levels import LEVELS, set_levels
from inferir.ir.system.text_file import read_text

USUAL_LEVEL = "info"


def _server_fields(
    host: Annotated[str, a.option("HOST", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, a.option("N", "Port to listen on; 0 takes a free one and prints it.")] = 8000,
    uds: Annotated[str | None, a.option("PATH", "Listen on a Unix socket at this path instead.")] = None,
    api_keys: Annotated[
        list[str] | None, a.option("KEY", "Key that inference needs. May be repeated.", "--api-key")
    ] = None,
    api_key_file: Annotated[
        Path | None, a.option("FILE", "File with such keys, one per line; hidden from `ps`.")
    ] = None,
    served_names: Annotated[
        list[str] | None,
        a.option(
            "NAME", "Name that requests give as model. May be repeated. Default: the model's.", "--served-model-name"
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, a.option("FILE", "Jinja chat template to use instead of the artifact's.")
    ] = None,
    special_tokens_in_messages: Annotated[
        bool,
        a.flag(
            "Let text of messages that spells a control token become one, as in prompts of completions.",
            "--allow-special-tokens-in-messages",
        ),
    ] = False,
    tool_style: Annotated[
        str, a.option("auto|hermes|json", "How the model writes tool calls; auto: as its template does.")
    ] = "auto",
    hide_unused_tools: Annotated[
        bool,
        a.flag(
            'Leave the tools out of the prompt where tool_choice is "none".', "--exclude-tools-when-tool-choice-none"
        ),
    ] = False,
    generation_config: Annotated[
        str, a.option("auto|none", "Whether requests get what the model recommends for sampling.")
    ] = "auto",
    grace: Annotated[float, a.option("S", "Seconds that running requests get after SIGTERM.", min=0)] = 30.0,
    strict: Annotated[bool, a.flag("Refuse requests with unknown fields.", "--strict")] = False,
    origins: Annotated[
        list[str] | None,
        a.option("ORIGIN", "Origin that browsers may call from. May be repeated. Default: any.", "--allowed-origin"),
    ] = None,
    metrics_prefix: Annotated[
        str, a.option("NAME", "Begins the names of metrics; vllm: they are vLLM's own.")
    ] = "inferir",
    routes: Annotated[
        list[str] | None, a.option("NAME", "Open this route of an installed plug-in. May be repeated.", "--allow-route")
    ] = None,
    stat_sinks: Annotated[
        list[str] | None,
        a.option("NAME", "Tell this sink of an installed plug-in how the engine is. May be repeated.", "--stat-sink"),
    ] = None,
    profile: Annotated[
        bool, a.flag("Add routes that record the engine's steps: /start_profile and /stop_profile.", "--profile")
    ] = False,
) -> Fields:
    """Those of `ServerOptions` that are given."""
    given = dict(locals())
    given["api_keys"] = [*(k.strip() for k in api_keys or ()), *_keys(given.pop("api_key_file"))]
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v not in (None, [])}


def _engine_fields(
    kv_cache_memory: Annotated[
        str | None, a.option("SIZE", 'KV-cache memory, such as "2GiB". Default: half the free memory.')
    ] = None,
    max_num_seqs: Annotated[int | None, a.option("N", "Requests that run at once.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, a.option("N", "Tokens per step at most. Default: the artifact's limit, 256 among several requests.")
    ] = None,
    max_model_len: Annotated[int | None, a.option("N", "Tokens per request at most.")] = None,
    threads: a.Threads = None,
    scheduling_policy: Annotated[
        str, a.option("fcfs|priority", "Who is served first; lower priorities go first.")
    ] = "fcfs",
    enable_prefix_caching: Annotated[
        bool, a.flag("Reuse the cache of equal beginnings.", "--enable-prefix-caching/--no-prefix-caching")
    ] = True,
    max_waiting: Annotated[
        int, a.option("N", "Requests that may wait; more are refused with status 429.", min=0)
    ] = 2048,
) -> Fields:
    """Those of `EngineOptions` that are given."""
    given = dict(locals())
    return {name: value for name, value in given.items() if value is not None}


@expanded(options=_server_fields, engine=_engine_fields)
def serve(
    artifact: a.Artifact,
    *,
    options: Fields,
    engine: Fields,
    log_level: Annotated[
        str | None, a.option("|".join(LEVELS), "How much is logged. Default: as INFERIR_LOG says, else info.")
    ] = None,
) -> None:
    """Serve an artifact over HTTP with the OpenAI API, metrics and a chat page."""
    if log_level not in (None, *LEVELS):
        raise typer.BadParameter(f"choose one of {', '.join(LEVELS)}", param_hint="--log-level")
    set_levels(log_level, USUAL_LEVEL)
    from inferir.runtime.sampling.sampling_defaults import CHOICES
    from inferir.runtime.text.tool_style import STYLES, style
    from inferir.server.serve import serve as run
    from inferir.server.server_options import ServerOptions

    for name, choices in (("tool_style", ("auto", *STYLES)), ("generation_config", CHOICES)):
        if options[name] not in choices:
            raise typer.BadParameter(f"choose one of {', '.join(choices)}", param_hint=f"--{name.replace('_', '-')}")
    options["tool_style"] = style(options["tool_style"])
    run(ServerOptions(artifact=artifact, engine=engine, **options))


def _keys(path: Path | None) -> list[str]:
    """Non-empty lines of a file. A file without any would leave the server open, so it is refused."""
    if path is None:
        return []
    keys = [line.strip() for line in read_text(path, "--api-key-file").splitlines() if line.strip()]
    if not keys:
        raise InferirError(f"--api-key-file {path}: has no key, which would leave the server open")
    return keys
