"""The weights of a GGUF model, dequantised tensor by tensor and brought into the form transformers' models have."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferir.frontend.checkpoint.checkpoint_weights import warn_if_not_finite
from inferir.frontend.gguf.gguf_described import Described, describe
from inferir.frontend.gguf.gguf_format import TensorInfo
from inferir.frontend.gguf.gguf_metadata import GgufModel, Identity, file_digest, identity, open_model
from inferir.frontend.gguf.gguf_tensors import changed
from inferir.ir.errors import WeightError
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    import numpy as np
    import torch


@functools.lru_cache(maxsize=2)
def _described(identity: Identity) -> Described:
    model = open_model(Path(identity[0][0]))
    check_extents(model)
    return describe(model, functools.partial(_factors, model))


def described(path: Path) -> Described:
    """Configuration and plan of a model, remembered. Raises `FrontendError` naming the key or tensor at fault."""
    return _described(identity(path))


def check_extents(model: GgufModel) -> None:
    """Raise `WeightError` naming a tensor whose type is unknown or that does not lie where the format puts it: one
    after the other, aligned, inside its file.
    """
    ends = {file: header.data_offset for file, header in model.headers.items()}
    for tensor in model.tensors.values():
        size, header = _bytes(tensor), model.headers[tensor.file]
        at, limit = ends[tensor.file], header.size
        if tensor.offset != at:
            raise _fail(tensor, f"its data begins at byte {tensor.offset}; it must follow the one before, at {at}")
        if at + size > limit:
            raise _fail(tensor, f"it ends at byte {at + size}, the file has {limit} (truncated?)")
        ends[tensor.file] = at + -(-size // header.alignment) * header.alignment


def _fail(tensor: TensorInfo, why: str) -> WeightError:
    return WeightError(f"{tensor.file.name}: tensor {tensor.name!r}: {why}")


def _kind(tensor: TensorInfo) -> Any:
    """The element type as the package `gguf` names it."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import _type_traits

    try:
        kind = GGMLQuantizationType(tensor.kind)
    except ValueError:
        raise _fail(tensor, f"{tensor.kind} is not the number of a known element type") from None
    if kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16) and kind not in _type_traits:
        raise _fail(tensor, f"element type {kind.name} is not supported; quantise the model in another type")
    return kind


def _bytes(tensor: TensorInfo) -> int:
    from gguf.constants import GGML_QUANT_SIZES

    kind = _kind(tensor)
    block, size = GGML_QUANT_SIZES[kind]
    if min(tensor.shape) < 1:
        raise _fail(tensor, f"its shape {list(tensor.shape)} is empty")
    if tensor.shape[-1] % block:
        raise _fail(tensor, f"rows of {tensor.shape[-1]} elements cannot be of type {kind.name}, in blocks of {block}")
    return math.prod(tensor.shape) // int(block) * int(size)


def dequantised(tensor: TensorInfo) -> np.ndarray[Any, Any]:
    """The values as float32, in the shape the file states."""
    import numpy as np
    from gguf.quants import dequantize

    raw = np.memmap(tensor.file, np.uint8, "r", tensor.offset, (_bytes(tensor),)).view(np.ndarray)
    rows = raw.reshape(*tensor.shape[:-1], -1)
    out: np.ndarray[Any, Any] = dequantize(rows, _kind(tensor))
    return np.reshape(out, tensor.shape)


def _factors(model: GgufModel, name: str, count: int) -> Sequence[float]:
    """A small tensor of divisors of frequencies."""
    tensor = model.tensors[name]
    if tensor.shape != (count,):
        raise _fail(tensor, f"its shape is {list(tensor.shape)}, but {count} frequencies need a factor each")
    values = [float(x) for x in dequantised(tensor)]
    if not all(math.isfinite(x) and x > 0 for x in values):
        raise _fail(tensor, "factors of frequencies must be finite and above 0")
    return values


class GgufWeights:
    """The weights of a GGUF model under transformers' names, dequantised to `dtype` when they are first used."""

    def __init__(self, path: Path, dtype: DType) -> None:
        self.path = path
        self.dtype = dtype
        self._loaded: dict[str, torch.Tensor] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(described(self.path).parameters))

    def where(self, name: str) -> str:
        info = self._planned(name).info
        return self.path.name if info is None else info.file.name

    def _planned(self, name: str) -> Any:
        try:
            return described(self.path).parameters[name]
        except KeyError:
            raise WeightError(f"tensor {name!r} is not in {self.path.name}") from None

    def type(self, name: str) -> TensorType:
        planned = self._planned(name)
        shape = planned.shape[::-1] if planned.change == "transpose" else planned.shape
        return TensorType(tuple(shape), self.dtype)

    def load(self, name: str) -> torch.Tensor:
        import numpy as np
        import torch

        if name not in self._loaded:
            planned = self._planned(name)
            if planned.info is None:
                values = np.zeros(planned.shape, np.float32)
            else:  # a copy: float32 data is a view of the file, and rearranged data is not contiguous
                values = np.array(changed(dequantised(planned.info), planned), order="C")
            self._loaded[name] = tensor = torch.from_numpy(values).to(torch_dtype(self.dtype))
            warn_if_not_finite(name, self.where(name), tensor)
        return self._loaded[name]

    def fingerprint(self) -> str:
        """Digest of all files of the model and the type it is dequantised to."""
        return file_digest(self.path, self.dtype.value)
