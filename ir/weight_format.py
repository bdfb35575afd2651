"""Weight formats: how a matrix [N, K] is stored for kernels, and what the stored tensors stand for.

A format is a module of `inferir.ir.formats` whose name is the format's, or comes from another distribution by an entry
point of the group `inferir.formats`. Its op `layout.pack_NAME` makes the stored tensors, in the order of the format's
roles; `tensor.linear_packed` takes them. A code generator that multiplies with a format has a micro-kernel of that name
(`inferir.codegen.tvm.formats` for CPUs).
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from inferir.ir import formats
from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.plugin_registry import PluginRegistry

if TYPE_CHECKING:
    import torch


class WeightFormat(ABC):
    """One format.

    name: a word; roles: what the stored tensors are, such as ("values", "scales"); options: attributes of its packing
    op and their types, `interleave` among them if products with it may be interleaved; defaults: of the options;
    features: of a target, in LLVM's spelling, without which its kernels are of no use.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[str, ...]]
    options: ClassVar[Mapping[str, Any]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    features: ClassVar[frozenset[str]] = frozenset()
    doc: ClassVar[str]

    @property
    def op(self) -> str:
        """The op that packs a weight."""
        return f"layout.pack_{self.name}"

    @abstractmethod
    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        """Types of the stored tensors of a weight [N, K]. Raises `IRError` for a weight that it cannot hold."""

    @abstractmethod
    def pack(self, w: torch.Tensor, options: Attrs) -> tuple[torch.Tensor, ...]:
        """The stored tensors of `w` [N, K]."""

    @abstractmethod
    def unpack(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        """The weight [n, K] that the stored tensors stand for, in the order of its own rows."""

    @abstractmethod
    def error(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        """By how much each number of `unpack` may be off what was packed: f32, broadcast to [n, K]. 0 means the same
        bits, inf that nothing is said.
        """

    def transform(self, b: Builder, w: Value, **options: Any) -> tuple[Value, ...]:
        """Values of the stored tensors. Raises `IRError` for a weight that it cannot hold."""
        return b.node(self.op, (w,), options).results

    def check(self, stored: Sequence[TensorType], w: TensorType, **given: Any) -> None:
        """Raise `IRError` unless tensors of these types can hold a weight of type `w`, packed with options `given`."""
        options = {**self.defaults, **given}
        if "interleave" not in self.options and options.pop("interleave", 1) != 1:
            raise IRError(f"{self.name} cannot be interleaved")
        want = self.types(w, Attrs(options))
        if tuple(stored) != want:
            have, needed = (", ".join(map(str, types)) for types in (stored, want))
            raise IRError(f"{self.name} of {w} are {needed}, not {have}")


FORMATS: PluginRegistry[WeightFormat] = PluginRegistry("formats", "weight format", IRError)
for _module in pkgutil.iter_modules(formats.__path__):
    FORMATS.add(_module.name, f"{formats.__name__}.{_module.name}:FORMAT")
