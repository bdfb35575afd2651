"""The account of a GGUF model's keys: each is read, known to be irrelevant, or named in an error or a warning.

`Keys` hands out values with their type and range checked and remembers which were read. What is left at the end is
looked up in two tables: keys that say nothing about numbers, and keys that are harmless with one value only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.gguf.gguf_metadata import GgufModel
from inferir.ir.errors import FrontendError

REQUIRED: Any = object()
MAX_INT = 2**31 - 1

# Keys that say nothing about numbers, by name or by prefix (ending in a dot), and why.
IRRELEVANT: Mapping[str, str] = {
    "general.": "describes the file: name, author, licence, links, type of quantisation",
    "split.": "says which files belong together; checked where the parts are opened",
    "quantize.": "says how the file was quantised",
    "imatrix.": "says what the quantiser measured",
    "tokenizer.": "read with the tokenizer",
    "training.": "says how the model was trained",
}

# Recommendations for sampling that are used, and their names in a generation config.
SAMPLING: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

_ZERO = """
attention.clamp_kqv attention.max_alibi_bias attention.q_lora_rank attention.kv_lora_rank attention.shared_kv_layers
attn_logit_softcapping embedding_length_per_layer_input expert_count expert_feed_forward_length expert_group_count
expert_group_used_count expert_shared_count expert_shared_feed_forward_length expert_used_count
final_logit_softcapping leading_dense_block_count nextn_predict_layers rope.scaling.alpha
rope.scaling.yarn_log_multiplier router_logit_softcapping
"""
_ZERO_OR_ONE = "attention.output_scale embedding_scale full_attention_interval logit_scale residual_scale"

# Keys `ARCH.…` that change nothing as long as they hold one of these values.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(_ZERO.split(), (0,)),
    **dict.fromkeys(_ZERO_OR_ONE.split(), (0, 1)),
    **dict.fromkeys(("swin_norm", "use_parallel_residual"), (False,)),
    "attention.causal": (True,),
    "tensor_data_layout": ("Meta AI original pth",),
}

# Keys `ARCH.…` that say nothing about the next token's logits.
HARMLESS: Mapping[str, str] = {
    "attention.layer_norm_epsilon": "of a kind of norm that the architecture has not; converters write both",
    "attention.layer_norm_rms_epsilon": "of a kind of norm that the architecture has not; converters write both",
    "pooling_type": "how embeddings are made of all tokens",
    "rope.scaling.finetuned": "whether the scaling was trained",
}


class Keys:
    """The keys of one model. `architecture` is the prefix of the keys that describe it."""

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.used: set[str] = set()
        self.architecture = self._text("general.architecture", REQUIRED)
        kind = self._text("general.type", "model")
        if kind != "model":
            raise self.fail("general.type", f"is {kind!r}: only whole models are read, not adapters or projectors")

    def full(self, suffix: str) -> str:
        """The key of the architecture with this ending."""
        return f"{self.architecture}.{suffix}"

    def has(self, suffix: str) -> bool:
        return self.full(suffix) in self.model.values

    def fail(self, key: str, why: str) -> FrontendError:
        return FrontendError(f"{self.model.file}: key {key!r} {why}")

    def _get(self, key: str, default: Any, check: Callable[[Any], bool], wanted: str) -> Any:
        self.used.add(key)
        if key not in self.model.values:
            if default is REQUIRED:
                raise self.fail(key, f"is missing; it must be {wanted}")
            return default
        value = self.model.values[key]
        if not check(value):
            shown = repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "…"
            raise self.fail(key, f"is {shown} ({self.model.types[key]}); it must be {wanted}")
        return value

    def _text(self, key: str, default: Any) -> str:
        return str(self._get(key, default, lambda v: isinstance(v, str) and bool(v), "a text"))

    def text(self, suffix: str, default: Any = REQUIRED) -> str:
        return self._text(self.full(suffix), default)

    def flag(self, suffix: str, default: Any = REQUIRED) -> bool:
        return bool(self._get(self.full(suffix), default, lambda v: isinstance(v, bool), "true or false"))

    def integer(self, suffix: str, default: Any = REQUIRED, low: int = 1, high: int = MAX_INT) -> int:
        def check(value: Any) -> bool:
            return _is_int(value) and low <= value <= high

        return int(self._get(self.full(suffix), default, check, f"an integer from {low} to {high}"))

    def number(self, suffix: str, default: Any = REQUIRED, low: float = 0.0, above: bool = False) -> float:
        """A finite number of at least `low` (`above`: greater)."""

        def check(value: Any) -> bool:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                return False
            return value > low if above else value >= low

        wanted = f"a finite number {'above' if above else 'of at least'} {low:g}"
        return float(self._get(self.full(suffix), default, check, wanted))

    def per_layer(self, suffix: str, layers: int, default: Any = REQUIRED) -> int:
        """An integer, or a list with the same integer for every layer. Layers that differ are refused."""
        key = self.full(suffix)
        value = self.model.values.get(key)
        if not isinstance(value, list):
            return self.integer(suffix, default)
        wanted = f"an integer, or a list of one for each of the {layers} layers"
        self._get(key, default, lambda v: len(v) == layers and all(_is_int(x) and x >= 1 for x in v), wanted)
        if len(set(value)) > 1:
            raise self.fail(key, "differs from layer to layer, which is not supported")
        return int(value[0])

    def same(self, suffix: str, value: float, meaning: str) -> None:
        """Read a key that may only repeat what is known: raise unless it is absent or `value`."""
        stated = self.number(suffix, value, low=-math.inf)
        if not math.isclose(stated, value, rel_tol=1e-4, abs_tol=1e-9):
            raise self.fail(self.full(suffix), f"is {stated:g}, but {meaning} is {value:g} for {self.architecture!r}")

    def source(self, *suffixes: str) -> str:
        """The first of these keys that the model has, for a record of where a fact came from."""
        keys = [self.full(s) for s in suffixes if self.has(s)]
        return f"{self.model.file}: {keys[0]}" if keys else f"{self.model.file}: default of {self.architecture!r}"

    def account(self) -> None:
        """Check the keys that were not read: raise `FrontendError` naming all that could change numbers, and warn about
        others that are not known.
        """
        wrong: list[str] = []
        unknown: list[str] = []
        for key, value in self.model.values.items():
            sampling = key.startswith("general.sampling.")
            if key in self.used or key in SAMPLING or (key.startswith(tuple(IRRELEVANT)) and not sampling):
                continue
            suffix = key.removeprefix(self.architecture + ".")
            if suffix == key:
                unknown.append(key)
            elif suffix not in HARMLESS and not _neutral(suffix, value):
                wrong.append(key if isinstance(value, list) else f"{key}={str(value)[:40]}")
        if wrong:
            raise FrontendError(
                f"{self.model.file}: {_list(wrong)}: {'these keys' if len(wrong) > 1 else 'this key'} of an "
                f"{self.architecture!r} model can change its numbers and is not supported; use the original model's "
                "folder, or a file without it"
            )
        if unknown:
            message = f"{self.model.file}: not known and not used: {_list(unknown)}"
            warnings.warn(message, WeightWarning, stacklevel=4)


def _neutral(suffix: str, value: Any) -> bool:
    same_kind = (ok for ok in NEUTRAL.get(suffix, ()) if isinstance(ok, bool) == isinstance(value, bool))
    return any(value == ok for ok in same_kind)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(names: list[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
