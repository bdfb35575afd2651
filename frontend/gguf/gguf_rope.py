"""Rotary frequencies of a GGUF model, by the format's rules, as parameters of a transformers configuration.

Frequency i of n is base^(-2i/n), divided by a factor of its own where the file has a tensor of them. A scaling type
then changes it:

- none: nothing; linear (also where no type is stated): divided by the factor.
- yarn: a mixture of that and the unscaled one, by how often a frequency turns within the original context; cosine and
  sine are multiplied by 1 + 0.1 ln(factor).
- longrope: one of two tensors of factors, by whether a sequence is longer than the original context.

`rope.scaling.attn_factor` multiplies cosine and sine for every type. What is not plain is handed over as explicit
frequencies (`rope.EXPLICIT`), so no library's reading of a scaling's name has a say. longrope is transformers' own,
which chooses by each sequence's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferir.frontend.gguf.gguf_keys import Keys
from inferir.ir.errors import WeightError

# A rope type of our own: the parameters state the frequencies themselves (`inv_freq`, radians per position) and what
# cosine and sine are multiplied by (`attention_factor`).
EXPLICIT = "explicit"
TYPES = ("none", "linear", "yarn", "longrope")
FREQS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
# llama.cpp's, which no key of these architectures changes there.
BETA_FAST, BETA_SLOW = 32.0, 1.0

Load = Callable[[str, int], Sequence[float]]


@dataclass(frozen=True)
class Scaling:
    """magnitude: what `rope.scaling.attn_factor` multiplies cosine and sine with. original: context before scaling."""

    kind: str
    factor: float = 1.0
    magnitude: float = 1.0
    original: int = 1


@dataclass(frozen=True)
class Rope:
    """parameters: `rope_parameters` of the configuration (of the full-attention layers). text, source: as people read
    it, and the key that says so. tensors: those that were used.
    """

    parameters: Mapping[str, Any]
    text: str
    source: str
    tensors: tuple[str, ...]
    scaling: Scaling


def read_rope(keys: Keys, turned: int, share: float | None, context: int, factors: Sequence[str], load: Load) -> Rope:
    """Read all `rope.*` keys but `rope.dimension_count` and `rope.freq_base_swa`.

    turned: how many elements of a head are rotated. share: of all its elements, None for a model type that always
    rotates all. context: the model's length. factors: names of the factor tensors that the model has and that its
    architecture may have. load: (name, count) -> their values.
    Raises `FrontendError` naming the key, `WeightError` naming the tensor.
    """
    base = keys.number("rope.freq_base", 10000.0, low=1.0, above=True)
    scaling = _scaling(keys, context)
    partial = {} if share is None else {"partial_rotary_factor": share}
    common = {"rope_theta": base, **partial}
    text = f"{scaling.kind}, base {base:g}"
    if scaling.kind in ("linear", "yarn") and scaling.factor != 1.0:
        text += f", factor {scaling.factor:g}"
    source = keys.source("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.freq_base")
    if LONG in factors or SHORT in factors:
        return _longrope(keys, scaling, common, turned, factors, load, source)
    if scaling.kind == "longrope":
        raise keys.fail(keys.full("rope.scaling.type"), f"is 'longrope', but the tensor {LONG!r} is missing")
    divisors = list(load(FREQS, turned // 2)) if FREQS in factors else [1.0] * (turned // 2)
    if FREQS in factors:
        text, source = f"{text}, a factor for each frequency", f"{keys.model.file}: tensor {FREQS}"
    if scaling.factor == 1.0 and scaling.magnitude == 1.0 and FREQS not in factors:
        plain = {"rope_type": "default", **common}
        return Rope(plain, f"no scaling, base {base:g}", source, (), scaling)
    parameters = {
        "rope_type": EXPLICIT,
        "inv_freq": frequencies(base, turned, scaling, divisors),
        "attention_factor": scaling.magnitude * _yarn_magnitude(scaling),
        **common,
    }
    return Rope(parameters, text, source, (FREQS,) if FREQS in factors else (), scaling)


def unscaled(rope: Rope, base: float, turned: int) -> Mapping[str, Any]:
    """Parameters of layers that no scaling type concerns, in a model with `rope` elsewhere: only
    `rope.scaling.attn_factor` is theirs too.
    """
    if rope.scaling.magnitude == 1.0:
        return {"rope_type": "default", "rope_theta": base}
    return {
        "rope_type": EXPLICIT,
        "inv_freq": frequencies(base, turned, Scaling("none"), [1.0] * (turned // 2)),
        "attention_factor": rope.scaling.magnitude,
        "rope_theta": base,
    }


def _scaling(keys: Keys, context: int) -> Scaling:
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in TYPES:
        raise keys.fail(keys.full("rope.scaling.type"), f"is {kind!r}; known are {', '.join(TYPES)}")
    older = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", older) or 1.0
    original = keys.integer("rope.scaling.original_context_length", context)
    magnitude = keys.number("rope.scaling.attn_factor", 1.0, above=True)
    scaling = Scaling(kind, 1.0 if kind == "none" else factor, magnitude, original)
    # Written by converters and read by llama.cpp for no architecture that is supported here: only what agrees with
    # what it does anyway has a meaning.
    keys.same("rope.scaling.yarn_beta_fast", BETA_FAST, "the only value that is used")
    keys.same("rope.scaling.yarn_beta_slow", BETA_SLOW, "the only value that is used")
    keys.same("rope.scaling.yarn_ext_factor", 1.0 if kind == "yarn" else 0.0, "the only value that is used")
    keys.same("rope.scaling.yarn_attn_factor", _yarn_magnitude(scaling), "the only value that is used")
    return scaling


def _yarn_magnitude(scaling: Scaling) -> float:
    return 1.0 + 0.1 * math.log(scaling.factor) if scaling.kind == "yarn" and scaling.factor > 1.0 else 1.0


def frequencies(base: float, turned: int, scaling: Scaling, divisors: Sequence[float]) -> list[float]:
    """The turned / 2 frequencies, in radians per position."""
    plain = [base ** (-2.0 * i / turned) / divisor for i, divisor in enumerate(divisors)]
    if scaling.kind != "yarn":
        return [frequency / scaling.factor for frequency in plain]
    low, high = _corrections(base, turned, scaling.original)
    mixes = [1.0 - min(1.0, max(0.0, (i - low) / max(0.001, high - low))) for i in range(len(plain))]
    return [f / scaling.factor * (1.0 - mix) + f * mix for f, mix in zip(plain, mixes, strict=True)]


def _corrections(base: float, turned: int, original: int) -> tuple[float, float]:
    """Between which frequencies yarn passes from unscaled to scaled."""

    def at(turns: float) -> float:
        return turned * math.log(original / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    return max(0.0, math.floor(at(BETA_FAST))), min(turned - 1.0, math.ceil(at(BETA_SLOW)))


def _longrope(
    keys: Keys,
    scaling: Scaling,
    common: Mapping[str, Any],
    turned: int,
    factors: Sequence[str],
    load: Load,
    source: str,
) -> Rope:
    for name in (LONG, SHORT):
        if name not in factors:
            raise WeightError(f"{keys.model.file}: tensor {name!r} is missing; {LONG!r} and {SHORT!r} belong together")
    if scaling.kind == "yarn":
        raise keys.fail(keys.full("rope.scaling.type"), f"is 'yarn', but there are factors for longrope ({LONG})")
    if FREQS in factors:
        raise WeightError(f"{keys.model.file}: tensors {FREQS!r} and {LONG!r} exclude each other")
    parameters = {
        "rope_type": "longrope",
        "long_factor": [scaling.factor * x for x in load(LONG, turned // 2)],
        "short_factor": [scaling.factor * x for x in load(SHORT, turned // 2)],
        "original_max_position_embeddings": scaling.original,
        "attention_factor": scaling.magnitude,
        **common,
    }
    text = f"longrope, base {common['rope_theta']:g}, original context {scaling.original}"
    text += f", cosine and sine times {scaling.magnitude:g}"
    if not keys.has("rope.scaling.type"):
        source = f"{keys.model.file}: tensor {LONG}"
    return Rope(parameters, text, source, (LONG, SHORT), scaling)
