"""What the commands of `inferir bench` are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import typer

from inferir.cli import arguments as a

MOST = 1_000_000
"""Of anything that is counted or waited for: more is a slip of the keyboard."""

InputLen = Annotated[int, typer.Option(metavar="N", min=1, help="Random token ids per prompt.")]
OutputLen = Annotated[int, typer.Option(metavar="N", min=1, help="Tokens per answer.")]
NumPrompts = Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many prompts.")]
Repetitions = Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How often it is measured.")]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same prompts.")]


@dataclass(frozen=True, kw_only=True)
class Load:
    """The requests of `inferir bench serve`. `rate`: requests per second on average, with exponential gaps; infinite:
    all at once. `timeout`: seconds that a request may take.
    """

    num_prompts: NumPrompts = 64
    input_len: InputLen = 128
    output_len: OutputLen = 64
    prefix_len: Annotated[
        int, typer.Option(metavar="N", min=0, help="Token ids before each prompt that all prompts share.")
    ] = 0
    vocab_size: Annotated[int, typer.Option(metavar="N", min=1, help="Token ids are drawn below this.")] = 256
    max_concurrency: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Requests under way at most. Default: no limit.")
    ] = None
    rate: Annotated[
        float,
        typer.Option("--request-rate", metavar="X", help="Requests per second, at random times. Default: all at once."),
    ] = math.inf
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")] = False
    temperature: a.Temperature = 0.0
    seed: Seed = 0
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.001, max=MOST, help="Seconds after which a request has failed.")
    ] = 300.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise typer.BadParameter("must be more than 0", param_hint="--request-rate")
