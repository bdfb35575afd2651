"""What a model's authors recommend for sampling: the generation_config.json that an artifact keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.text.tokenizer import read_json

CHOICES = ("auto", "none")
FILE = "generation_config.json"

_DRAWING = ("temperature", "top_k", "top_p", "min_p")
_ALWAYS = {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}


@dataclass(frozen=True)
class SamplingDefaults:
    """values: fields of `SamplingParams` for requests that do not set them. ignored: why others were left out."""

    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    ignored: tuple[str, ...] = ()

    @staticmethod
    def load(tokenizer_dir: Path, choice: str = "auto") -> SamplingDefaults:
        """Those of an artifact; with the choice "none", there are none. Raises `EngineError` for another choice."""
        if choice not in CHOICES:
            raise EngineError(f"generation_config={choice!r} must be one of {', '.join(CHOICES)}")
        return SamplingDefaults.of(read_json(tokenizer_dir / FILE)) if choice == "auto" else SamplingDefaults()

    @staticmethod
    def of(config: Mapping[str, Any]) -> SamplingDefaults:
        """Those of a generation_config.json.

        Where it says do_sample false, what decides how tokens are drawn does not count. Values that change nothing are
        left out, and so are values that no request could give.
        """
        taken = dict(_ALWAYS)
        if config.get("do_sample") is not False:
            taken |= {name: name for name in _DRAWING}
        neutral = SamplingParams()
        values, ignored = {}, []
        for name, own in taken.items():
            value = config.get(name)
            if value is None:
                continue
            try:
                params = SamplingParams(**{own: value})
            except RequestError as error:
                ignored.append(f"{name} of {FILE} is ignored: {error}")
                continue
            if own == "max_tokens" or _meaning(params, own) != _meaning(neutral, own):
                values[own] = value
        return SamplingDefaults(MappingProxyType(values), tuple(ignored))

    def text(self) -> str:
        """For people: `temperature 0.6, top_k 20`; empty if there are none."""
        return ", ".join(f"{name} {value:g}" for name, value in self.values.items())

    def params(self, **given: Any) -> SamplingParams:
        """Parameters with the model's values for all that is not given. Raises `RequestError`."""
        return SamplingParams(**{**self.values, **given})


def _meaning(params: SamplingParams, name: str) -> Any:
    """A parameter's value, where several mean the same."""
    value = getattr(params, name)
    return max(value, 0) if name == "top_k" else value
