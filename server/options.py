"""What a user may choose about the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferir.runtime.tool_style import Style


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `inferir serve`; `engine` are fields of `EngineOptions`.

    host, port, uds: where to listen; with uds, a Unix socket at that path instead. api_keys: if any, inference needs
    one of them. served_names: names that requests may give as model; the first is shown. grace: seconds that running
    requests get after SIGTERM. strict: refuse unknown fields. body_limit: bytes of a request. max_sequences: prompts
    times n in one request. tool_style: how the model writes tool calls; None: as its template does. generation_config:
    whether the model's recommendations are defaults of requests, "auto" or "none". hide_unused_tools: leave tools
    out of the prompt where `tool_choice` is "none". origins: origins that browsers may call from, "*" for all.
    special_tokens_in_messages: whether the spelling of a control token in a message is one.
    """

    artifact: Path
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    chat_template: Path | None = None
    grace: float = 30.0
    strict: bool = False
    body_limit: int = 8 << 20
    max_sequences: int = 1024
    origins: tuple[str, ...] = ("*",)
    tool_style: Style | None = None
    special_tokens_in_messages: bool = False
    generation_config: str = "auto"
    hide_unused_tools: bool = False
    metrics_prefix: str = "inferir"
    engine: Mapping[str, Any] = field(default_factory=dict)
