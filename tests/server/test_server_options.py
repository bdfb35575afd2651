"""Options with which a server would be open, deaf or nameless are refused at start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.errors import InferirError
from inferir.server.server_options import ServerOptions

OPEN = "a key is empty or blank, which would leave the server open"
ART = Path("art")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"api_keys": ("",)}, OPEN),
        ({"api_keys": ("good", " \t")}, OPEN),
        ({"api_keys": ("\u3000",)}, OPEN),
        ({"api_keys": (" k",)}, "begins or ends with a blank"),
        ({"api_keys": ("a\nb",)}, "control character"),
        ({"served_names": ("m", "")}, "--served-model-name is empty or blank"),
        ({"origins": ("",)}, "--allowed-origin is empty or blank"),
        ({"metrics_prefix": "no-name"}, "--metrics-prefix 'no-name' is no name of metrics"),
        ({"metrics_prefix": "é"}, "--metrics-prefix"),
        ({"metrics_prefix": "a\n"}, "--metrics-prefix"),
        ({"grace": float("nan")}, "--grace is nan"),
        ({"grace": -1.0}, "--grace is -1.0"),
    ],
)
def test_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InferirError, match=re.escape(reason)):
        ServerOptions(artifact=ART, **options)


def test_taken() -> None:
    assert ServerOptions(artifact=ART, api_keys=("sk é 1",), metrics_prefix="").api_keys == ("sk é 1",)
