"""What a user may choose about the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferir.ir.errors import InferirError
from inferir.runtime.text.tool_style import Style

_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*|", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `inferir serve`; `engine` are fields of `EngineOptions`.

    host, port, uds: where to listen; with uds, a Unix socket at that path instead. api_keys: if any, inference needs
    one of them. served_names: names that requests may give as model; the first is shown. grace: seconds that running
    requests get after SIGTERM. strict: refuse unknown fields. tool_style: how the model writes tool calls; None: as its
    template does. generation_config: whether the model's recommendations are defaults of requests, "auto" or "none".
    hide_unused_tools: leave tools out of the prompt where `tool_choice` is "none". origins: origins that browsers may
    call from, "*" for all. special_tokens_in_messages: whether the spelling of a control token in a message is one.
    routes, stat_sinks: names of entries of other distributions that take part. profile: whether there are routes that
    record the engine's steps.
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
    origins: tuple[str, ...] = ("*",)
    tool_style: Style | None = None
    special_tokens_in_messages: bool = False
    generation_config: str = "auto"
    hide_unused_tools: bool = False
    metrics_prefix: str = "inferir"
    routes: tuple[str, ...] = ()
    stat_sinks: tuple[str, ...] = ()
    profile: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `InferirError` for a value with which the server would be open, deaf or nameless."""
        for key in self.api_keys:
            if not key.strip():
                raise InferirError("--api-key: a key is empty or blank, which would leave the server open")
            if key != key.strip() or not all(c.isprintable() for c in key):
                raise InferirError("--api-key: a key begins or ends with a blank, or holds a control character")
        for option, values in (("--served-model-name", self.served_names), ("--allowed-origin", self.origins)):
            if not all(v.strip() for v in values):
                raise InferirError(f"{option} is empty or blank; give a value, or leave the option out")
        if not _PREFIX.fullmatch(self.metrics_prefix):
            raise InferirError(
                f"--metrics-prefix {self.metrics_prefix!r} is no name of metrics: letters, digits and underscores"
            )
        if not self.grace >= 0:
            raise InferirError(f"--grace is {self.grace}; give seconds from 0 on")
