"""Eager's own logits and module outputs, in float32, in the served type, and in float64 where rounding is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.source.model_source import ModelSource
from inferir.ir.graph.dtypes import DType
from inferir.verify.divergence import Rows
from inferir.verify.logit_bound import LogitBound


@dataclass
class EagerReference:
    """Eager code over the weights of `source`; `models` are loaded when they are needed, and kept."""

    source: ModelSource
    sequences: Sequence[Sequence[int]]
    models: dict[DType, Any] = field(default_factory=dict)
    _logits: dict[DType, list[Rows]] = field(default_factory=dict)

    def model(self, dtype: DType) -> Any:
        """The model in `dtype`. In float64 it has the weights that float32 has."""
        if dtype not in self.models:
            loaded = eager_model(self.source, DType.F32 if dtype is DType.F64 else dtype)
            self.models[dtype] = loaded.double() if dtype is DType.F64 else loaded
        return self.models[dtype]

    def logits(self, dtype: DType, say: Callable[[int, int], None] = lambda done, total: None) -> list[Rows]:
        """Logits [tokens, V] of every sequence."""
        if dtype not in self._logits:
            rows = []
            for number, ids in enumerate(self.sequences):
                say(number, len(self.sequences))
                rows.append(model_logits(self.model(dtype), ids).numpy())
            say(len(self.sequences), len(self.sequences))
            self._logits[dtype] = rows
        return self._logits[dtype]

    def bound(self, dtype: DType) -> LogitBound:
        """What logits computed in `dtype` are held against."""
        own = None if dtype is DType.F32 else self.logits(dtype)
        return LogitBound(self.logits(DType.F32), own, self._precise)

    def _precise(self, number: int) -> Rows:
        return model_logits(self.model(DType.F64), self.sequences[number]).numpy()

    def modules(self, dtype: DType, number: int) -> dict[str, torch.Tensor]:
        """What every module returned for sequence `number`, in float64: its first tensor. Of a module that is called
        several times it is the last; one that returns several tensors of one shape is left out.
        """
        found: dict[str, torch.Tensor] = {}
        model = self.model(dtype)

        def keep(name: str) -> Callable[[Any, Any, Any], None]:
            def hook(module: Any, args: Any, output: Any) -> None:
                first = _first_tensor(output)
                if first is not None:
                    found[name] = first.detach().double()

            return hook

        handles = [m.register_forward_hook(keep(name)) for name, m in model.named_modules() if name]
        try:
            model_logits(model, self.sequences[number])
        finally:
            for handle in handles:
                handle.remove()
        return found


def _first_tensor(output: Any) -> torch.Tensor | None:
    tensors = list(_tensors(output))
    shapes = [t.shape for t in tensors]
    return tensors[0] if tensors and shapes.count(shapes[0]) == 1 else None


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(tuple(output.values()))
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)
