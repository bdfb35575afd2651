"""Options of commands that generate text, and the sampling parameters that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferir.cli.shared_options import Fields
from inferir.ir.system.text_file import read_text


def _sampling(metavar: str, help: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel="Sampling", **more)


def _ending(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel="Where it ends", **more)


def _structure(metavar: str | None, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel="Structured output (one of these)")


Penalty = Annotated[float | None, _sampling("X", "Makes repeated tokens less likely.")]
GenerationConfig = Annotated[
    str, _sampling("auto|none", "auto: what is not given is as the model's generation_config.json recommends.")
]


def sampling_fields(
    temperature: Annotated[
        float | None, _sampling("X", "0, the default, takes the most likely token each time.", min=0)
    ] = None,
    seed: Annotated[int | None, _sampling("N", "Makes draws with a temperature repeatable.")] = None,
    top_k: Annotated[int | None, _sampling("N", "Only the N most likely tokens.")] = None,
    top_p: Annotated[float | None, _sampling("X", "Only the most likely tokens that make up this share.")] = None,
    min_p: Annotated[
        float | None, _sampling("X", "Only tokens at least this share as likely as the most likely one.")
    ] = None,
    repetition_penalty: Penalty = None,
    presence_penalty: Penalty = None,
    frequency_penalty: Penalty = None,
    logit_bias: Annotated[
        list[str] | None, _sampling("ID=X", "Add X to the logit of a token id. May be repeated.")
    ] = None,
    bad_word: Annotated[list[str] | None, _sampling("TEXT", "Never complete this text. May be repeated.")] = None,
    max_tokens: Annotated[int | None, _ending("N", "Generate at most N tokens. Default: until it ends.", min=1)] = None,
    stop: Annotated[list[str] | None, _ending("TEXT", "End before this text. May be repeated.")] = None,
    stop_token_id: Annotated[list[int] | None, _ending("ID", "End with this token. May be repeated.")] = None,
    min_tokens: Annotated[int | None, _ending("N", "Nothing ends it before N tokens.")] = None,
    ignore_eos: Annotated[bool, _ending(None, "Go on after an end-of-text token.", "--ignore-eos")] = False,
    json_schema: Annotated[Path | None, _structure("FILE", "JSON that follows the schema in this file.")] = None,
    json_object: Annotated[bool, _structure(None, "Any JSON object.", "--json-object")] = False,
    regex: Annotated[str | None, _structure("REGEX", "Text that it matches as a whole.")] = None,
    choice: Annotated[list[str] | None, _structure("TEXT", "One of these texts. May be repeated.")] = None,
    grammar: Annotated[Path | None, _structure("FILE", "Text of the GBNF grammar in it.", "--grammar")] = None,
) -> Fields:
    """Those of `SamplingParams` that are given. Raises `typer.BadParameter`, and `InferirError` for a file."""
    given = dict(locals())
    given["logit_bias"] = _biases(logit_bias)
    given["bad_words"] = given.pop("bad_word") or None
    given["stop"] = stop or None
    given["stop_token_ids"] = given.pop("stop_token_id") or None
    structure = [given.pop(name) for name in ("json_schema", "json_object", "regex", "choice", "grammar")]
    given["structured"] = _structured(*structure)
    return {name: value for name, value in given.items() if value is not None}


def _biases(given: list[str] | None) -> dict[int, float] | None:
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


def _structured(
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
