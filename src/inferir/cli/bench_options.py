"""What the commands of `inferir bench` are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import typer

from inferir.cli import arguments as a

MOST = 1_000_000
"""Of anything that is counted or waited for: more is a slip of the keyboard."""

InputLen = Annotated[int, a.option("N", "Random token ids per prompt.", min=1)]
OutputLen = Annotated[int, a.option("N", "Tokens per answer.", min=1)]
NumPrompts = Annotated[int, a.option("N", "How many prompts.", min=1, max=MOST)]
Repetitions = Annotated[int, a.option("N", "How often it is measured.", min=1, max=MOST)]
Seed = Annotated[int, a.option("N", "The same seed gives the same prompts.")]


@dataclass(frozen=True, kw_only=True)
class Load:
    """The requests of `inferir bench serve`. `rate`: requests per second on average, with exponential gaps; infinite:
    all at once. `timeout`: seconds that a request may take.
    """

    num_prompts: NumPrompts = 64
    input_len: InputLen = 128
    output_len: OutputLen = 64
    prefix_len: Annotated[int, a.option("N", "Token ids before each prompt that all prompts share.", min=0)] = 0
    vocab_size: Annotated[int, a.option("N", "Token ids are drawn below this.", min=1)] = 256
    max_concurrency: Annotated[int | None, a.option("N", "Requests under way at most. Default: no limit.", min=1)] = (
        None
    )
    rate: Annotated[
        float, a.option("X", "Requests per second, at random times. Default: all at once.", "--request-rate")
    ] = math.inf
    ignore_eos: Annotated[bool, a.flag("Go on after an end-of-text token.", "--ignore-eos")] = False
    temperature: a.Temperature = 0.0
    seed: Seed = 0
    timeout: Annotated[float, a.option("S", "Seconds after which a request has failed.", min=0.001, max=MOST)] = 300.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise typer.BadParameter("must be more than 0", param_hint="--request-rate")
