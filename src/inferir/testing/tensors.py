"""Random tensors for types, the same for the same names and seed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from inferir.ir.graph.dtypes import torch_dtype
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]


def generator_for(name: str, seed: int) -> torch.Generator:
    """A source of random numbers that depends on both."""
    import torch

    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))


def random_weight(name: str, type_: TensorType, seed: int = 0) -> torch.Tensor:
    """A matrix that keeps the size of what it is multiplied with; a vector of numbers near 1, of either sign seldom."""
    import torch

    shape = type_.concrete({})
    tensor = torch.randn(shape, generator=generator_for(name, seed))
    if len(shape) < 2:
        tensor = 1 + 0.3 * tensor
    else:
        tensor = tensor * 1.5 / max(1, shape[-1]) ** 0.5
    return tensor.to(torch_dtype(type_.dtype))


def random_weights(graph: Graph, seed: int = 0) -> Tensors:
    """A tensor for every weight of a graph."""
    return {name: random_weight(name, value.type, seed) for name, value in graph.weights().items()}


def with_transforms(weights: Mapping[str, torch.Tensor], transforms: Mapping[str, Graph]) -> Tensors:
    """Checkpoint weights and those that weight transforms compute of them."""
    made = {name: interpret(transform, {}, weights)["value"].contiguous() for name, transform in transforms.items()}
    return {**weights, **made}
