"""Options of commands that generate text, and the sampling parameters that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferir.ir.system.text_file import read_text

_SAMPLING = "Sampling"
_ENDING = "Where it ends"
_STRUCTURE = "Structured output (one of these)"

Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="X", min=0, help="0, the default, takes the most likely token each time.", rich_help_panel=_SAMPLING
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", help="Makes draws with a temperature repeatable.", rich_help_panel=_SAMPLING),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Generate at most N tokens. Default: until it ends.", rich_help_panel=_ENDING
    ),
]
TopK = Annotated[
    int | None, typer.Option(metavar="N", help="Only the N most likely tokens.", rich_help_panel=_SAMPLING)
]
TopP = Annotated[
    float | None,
    typer.Option(metavar="X", help="Only the most likely tokens that make up this share.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Only tokens at least this share as likely as the most likely one.",
        rich_help_panel=_SAMPLING,
    ),
]
Penalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="Makes repeated tokens less likely.", rich_help_panel=_SAMPLING),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=X", help="Add X to the logit of a token id. May be repeated.", rich_help_panel=_SAMPLING),
]
BadWord = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Never complete this text. May be repeated.", rich_help_panel=_SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End before this text. May be repeated.", rich_help_panel=_ENDING),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option(metavar="ID", help="End with this token. May be repeated.", rich_help_panel=_ENDING),
]
MinTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Nothing ends it before N tokens.", rich_help_panel=_ENDING)
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.", rich_help_panel=_ENDING)
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON that follows the schema in this file.", rich_help_panel=_STRUCTURE),
]
JsonObject = Annotated[bool, typer.Option("--json-object", help="Any JSON object.", rich_help_panel=_STRUCTURE)]
Regex = Annotated[
    str | None, typer.Option(metavar="REGEX", help="Text that it matches as a whole.", rich_help_panel=_STRUCTURE)
]
Choice = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="One of these texts. May be repeated.", rich_help_panel=_STRUCTURE),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option("--grammar", metavar="FILE", help="Text of the GBNF grammar in it.", rich_help_panel=_STRUCTURE),
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        metavar="auto|none",
        help="auto: what is not given is as the model's generation_config.json recommends.",
        rich_help_panel=_SAMPLING,
    ),
]


def biases(given: list[str] | None) -> dict[int, float] | None:
    """`ID=X` each. Raises `typer.BadParameter`."""
    if not given:
        return None
    found = {}
    for text in given:
        token, _, number = text.partition("=")
        try:
            found[int(token)] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not ID=X, such as 42=-100", param_hint="--logit-bias") from None
    return found


def structure(
    json_schema: Path | None, json_object: bool, regex: str | None, choice: list[str] | None, grammar: Path | None
) -> dict[str, Any] | None:
    """What `SamplingParams` takes as `structured`. Raises `typer.BadParameter` for several, `InferirError` for a file
    that cannot be read.
    """
    given: dict[str, Any] = {
        "--json-schema": json_schema is not None and {"json": read_text(json_schema, "--json-schema")},
        "--json-object": json_object and {"json_object": True},
        "--regex": regex is not None and {"regex": regex},
        "--choice": bool(choice) and {"choice": choice},
        "--grammar": grammar is not None and {"grammar": read_text(grammar, "--grammar")},
    }
    found = [(name, value) for name, value in given.items() if value]
    if len(found) > 1:
        raise typer.BadParameter(f"excludes {found[1][0]}", param_hint=found[0][0])
    return dict(found[0][1]) if found else None
