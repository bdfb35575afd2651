"""`--baseline FILE`: figures of an earlier run that this one may not fall behind, and `--write-baseline FILE`."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import InferirError
from inferir.ir.system.text_file import read_text, write_file
from inferir.verify.checks import Check
from inferir.verify.thresholds import Tolerance

FORMAT = 1
_LENGTHS = {True: "quick", False: "full"}


@dataclass(frozen=True)
class Figures:
    """What a run measured, in a few numbers.

    quick: whether it was short; positions: how many were compared; kl: nats, mean over the positions that the KL check
    counts; eager_kl: the same of eager in the artifact's own type; top1: share of positions; max_abs: units of a logit;
    decode_speed, prefill_speed: tokens per second in multiples of eager's, with `threads`; None if not measured.
    """

    model: str
    dtype: str
    target: str
    quick: bool
    positions: int
    kl: float
    top1: float
    max_abs: float
    eager_kl: float | None = None
    decode_speed: float | None = None
    prefill_speed: float | None = None
    threads: int | None = None
    format: int = FORMAT


@dataclass(frozen=True)
class Baseline:
    """Figures of an earlier run, and the file that they are from."""

    figures: Figures
    source: str

    @property
    def has_speed(self) -> bool:
        return self.figures.decode_speed is not None or self.figures.prefill_speed is not None

    def check_same(self, manifest: Manifest, quick: bool, threads: int | None = None) -> None:
        """Refuse a baseline of another model, type, target or length of run, or whose speed is that of another number
        of threads than the `threads` with which it is measured now, if it is. Raises `InferirError` naming it.
        """
        model, there = manifest.model, self.figures
        for what, was, now in (
            ("model", there.model, model.name),
            ("element type", there.dtype, model.dtype.value),
            ("target", there.target, manifest.target.name),
            ("length", _LENGTHS[there.quick], _LENGTHS[quick]),
            ("number of threads for speed", there.threads, threads if self.has_speed and threads else there.threads),
        ):
            if was != now:
                raise InferirError(
                    f"--baseline {self.source}: its {what} is {was}, that of this run {now}; "
                    "write a baseline of this artifact with --write-baseline"
                )


_TYPES: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "dtype": (str,),
    "target": (str,),
    "quick": (bool,),
    "positions": (int,),
    "kl": (float, int),
    "top1": (float, int),
    "max_abs": (float, int),
    "eager_kl": (float, int, type(None)),
    "decode_speed": (float, int, type(None)),
    "prefill_speed": (float, int, type(None)),
    "threads": (int, type(None)),
    "format": (int,),
}


def load_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Figures from a file of `--write-baseline` or a report of `--json`. Raises `InferirError` naming the file."""
    place = f"--baseline {os.fspath(path)}"
    text = read_text(path, "--baseline")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InferirError(f"{place}: {error}") from None
    found: Any = document.get("figures", document) if isinstance(document, dict) else None
    if not isinstance(found, dict) or "format" not in found or "kl" not in found:
        raise InferirError(f"{place}: neither a baseline nor a report of `inferir verify --json`")
    if found["format"] != FORMAT:
        raise InferirError(f"{place}: format {found['format']!r}, this version reads {FORMAT}; write it again")
    for key, value in found.items():
        if key not in _TYPES:
            raise InferirError(f"{place}: unknown key {key}")
        fits = isinstance(value, _TYPES[key]) and (bool in _TYPES[key] or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise InferirError(f"{place}: {key} is {json.dumps(value)}, which is no value of it")
    missing = [key for key in ("model", "dtype", "target", "quick", "positions", "top1", "max_abs") if key not in found]
    if missing:
        raise InferirError(f"{place}: lacks {', '.join(missing)}")
    return Baseline(Figures(**found), os.fspath(path))


def write_figures(figures: Figures, file: Path) -> None:
    """Write figures as a whole or not at all. Raises `InferirError` naming the file."""
    write_file(file, (json.dumps(asdict(figures), indent=2) + "\n").encode())


def baseline_checks(here: Figures, baseline: Baseline, tolerance: Tolerance) -> list[Check]:
    """Hold a run's figures against those of its baseline; each check says by how much the run is ahead or behind."""
    was, source = baseline.figures, baseline.source
    most = max(was.kl * (1 + tolerance.kl), was.kl + tolerance.kl_floor)
    text = f"mean KL {here.kl:.3e}, baseline {was.kl:.3e} ({_change(here.kl, was.kl)}), at most {most:.3e}"
    if here.positions != was.positions:
        text += f"; over {here.positions:,} positions, there over {was.positions:,}"
    checks = [Check("KL against baseline", here.kl <= most, text, here.kl, most, source)]
    least = was.top1 - tolerance.top1
    points = 100 * (here.top1 - was.top1)
    text = f"eager's most likely token in {here.top1:.2%} of all positions, baseline {was.top1:.2%} "
    text += f"({points:+.2f} points), at least {least:.2%}"
    checks.append(Check("top-1 against baseline", here.top1 >= least, text, here.top1, least, source))
    for name, ratio, old, allowed in (
        ("decode speed against baseline", here.decode_speed, was.decode_speed, tolerance.decode_speed),
        ("prefill speed against baseline", here.prefill_speed, was.prefill_speed, tolerance.prefill_speed),
    ):
        if ratio is not None and old is not None:
            least = old * (1 - allowed)
            text = (
                f"{ratio:.2f} times eager's tokens/s, baseline {old:.2f} ({_change(ratio, old)}), at least {least:.2f}"
            )
            checks.append(Check(name, ratio >= least, text, ratio, least, source))
    return checks


def _change(now: float, then: float) -> str:
    return f"{now / then - 1:+.1%}" if then else "the baseline is 0"
