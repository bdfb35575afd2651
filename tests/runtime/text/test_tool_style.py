"""Which style of tool calls a chat template has, and that an artifact remembers it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from artifacts import TEMPLATE, compile_tiny, write_model

from inferir.inspect.inspect_artifact import summary, view_artifact
from inferir.runtime.text.tool_style import detect_style, style

HERMES = """{% if tools %}# Tools
For each call, give JSON within <tool_call></tool_call>: {"name": <name>, "arguments": <arguments>}{% endif %}"""
JSON = (
    """{% if tools is not none %}Respond in the format {"name": function name, "parameters": dictionary}.{% endif %}"""
)
MISTRAL = """[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS][TOOL_CALLS][{"name": "arguments": }]"""
CODER = """{{ tools }}<tool_call>\n<function=name>\n<parameter=x>"""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATE, None),
        (HERMES, "hermes"),
        (JSON, "json"),
        (MISTRAL, None),
        (CODER, None),
        ("{{ tools }} are described in another way", None),
        ('{"name": "arguments"}', None),
        ("<tool_call>", None),
    ],
)
def test_detection(template: str, expected: str | None) -> None:
    assert detect_style(template) == expected


def test_names() -> None:
    assert [style(n) for n in ("hermes", "json", "auto", None)] == ["hermes", "json", None, None]


def test_the_artifact_has_it(tiny_artifact: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", num_hidden_layers=1)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE + HERMES}))
    compile_tiny(model, tmp_path / "art")
    view = view_artifact(tmp_path / "art")
    assert view.manifest.model.tool_style == "hermes"
    assert dict(summary(view))["tool calls"] == "hermes"
    plain = view_artifact(tiny_artifact)
    assert plain.manifest.model.tool_style is None
    assert dict(summary(plain))["tool calls"].startswith("none")
