"""`--thresholds FILE`: bounds that a user sets, in TOML or JSON, and how far a run may fall behind its baseline."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.ir.system.text_file import read_text

_SHARES = ("top1", "greedy_ids")
"""Keys whose values are shares of a whole, from 0 to 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far a run may fall behind its baseline.

    kl: the share by which the mean KL divergence may be larger, once it is larger by `kl_floor` nats at all; top1: what
    may be missing from the agreement (a share of positions); decode_speed, prefill_speed: the share by which the ratio
    to eager's speed may be smaller.
    """

    kl: float = 0.05
    kl_floor: float = 1e-6
    top1: float = 0.005
    decode_speed: float = 0.25
    prefill_speed: float = 0.25


@dataclass(frozen=True)
class Thresholds:
    """Bounds from a file; None: the built-in bound if there is one, else nothing is demanded.

    kl: nats, at most, mean over the positions; kl_ratio: the same, at most, in multiples of what eager in the
    artifact's own type has; max_abs: units of a logit, at most and without excuse; max_abs_rms: the same in multiples
    of the RMS of eager's logits; top1: share of positions, at least; greedy_ids: share of generations, at least; tie:
    margin of eager's two best logits below which another id is excused; decode_speed, prefill_speed: tokens per second,
    at least, in multiples of eager's in the same run. source: the file's name.
    """

    kl: float | None = None
    kl_ratio: float | None = None
    max_abs: float | None = None
    max_abs_rms: float | None = None
    top1: float | None = None
    greedy_ids: float | None = None
    tie: float | None = None
    decode_speed: float | None = None
    prefill_speed: float | None = None
    tolerance: Tolerance = Tolerance()
    source: str = ""

    @property
    def need_speed(self) -> bool:
        return self.decode_speed is not None or self.prefill_speed is not None

    def origin(self, key: str) -> str:
        """The file if it sets `key`, "" if the bound is built in."""
        return self.source if getattr(self, key) is not None else ""

    def check_type(self, dtype: DType) -> None:
        """Refuse a bound that an artifact of this type cannot be held to. Raises `InferirError`."""
        if dtype is DType.F32 and self.kl_ratio is not None:
            raise InferirError(
                f"--thresholds {self.source}: kl_ratio is a multiple of what eager in the artifact's own type has, "
                "which an artifact in f32 lacks; set kl or max_abs_rms"
            )


BOUNDS = tuple(f.name for f in dataclasses.fields(Thresholds) if f.name not in ("tolerance", "source"))
TOLERANCES = tuple(f.name for f in dataclasses.fields(Tolerance))


def load_thresholds(path: str | os.PathLike[str]) -> Thresholds:
    """Thresholds from a file, TOML unless it is called *.json. Raises `InferirError` naming the file and the key."""
    place = f"--thresholds {os.fspath(path)}"
    text = read_text(path, "--thresholds")
    try:
        document = json.loads(text) if Path(path).suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InferirError(f"{place}: {error}") from None
    bounds = _table(place, "", document, (*BOUNDS, "tolerance"))
    tolerance = _table(place, "tolerance.", bounds.pop("tolerance", {}), TOLERANCES)
    found = {key: _number(place, key, value) for key, value in bounds.items()}
    allowed = {key: _number(place, f"tolerance.{key}", value) for key, value in tolerance.items()}
    if "max_abs" in found and "max_abs_rms" in found:
        raise InferirError(f"{place}: max_abs and max_abs_rms bound the same; give one of them")
    return Thresholds(**found, tolerance=Tolerance(**allowed), source=os.fspath(path))


def _table(place: str, prefix: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InferirError(f"{place}: {prefix.rstrip('.') or 'the document'} must be a table of keys and numbers")
    for key in value:
        if key not in known:
            raise InferirError(f"{place}: unknown key {prefix}{key}; known: {', '.join(prefix + k for k in known)}")
    return dict(value)


def _number(place: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InferirError(f"{place}: {key} must be a number, not {json.dumps(value, default=str)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if key.removeprefix("tolerance.") in _SHARES and not 0 <= number <= 1:
        raise InferirError(f"{place}: {key} must be from 0 to 1, not {number:g}")
    if not 0 <= number < math.inf:
        raise InferirError(f"{place}: {key} must be finite and not negative, not {number:g}")
    return number
