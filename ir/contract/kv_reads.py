"""What a token reads of its sequence: a rule that is written once, for planner, runtime, reference and kernels.

A rule says where the positions begin that a token reads; they end with its own. It computes with `+`, `-`, `*` and `//`
by positive numbers only, so it works on integers, on arrays and tensors of them, and on the texts of a kernel
(`codegen.tvm.source.IndexText`). A new rule is a class here and its line in the registry of `kv_specs`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Reads:
    """Base of all rules, which are tagged structs of integers: the tag is the name of the rule."""

    __slots__ = ()

    def first(self, position: Any) -> Any:
        """The first position that the token at `position` (not negative) reads; negative where that is all there are.

        No later token reads an earlier one.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def period(self) -> int:
        """By what positions may be shifted, and all multiples of it: first(p + period) = first(p) + period. 0: by
        nothing, since tokens read everything.
        """
        return 0

    @property
    def reach(self) -> int | None:
        """The most positions that a token reads, the last of them its own; None for all."""
        return max(p - self.first(p) + 1 for p in range(self.period)) if self.period else None

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        """The rule for people."""
        return self.kind.replace("_", " ") + ("" if self.reach is None else f" of {self.reach:,}")

    def __str__(self) -> str:
        """The rule in graphs: `full_attention`, `sliding_window(512)`."""
        values = ", ".join(str(v) for v in msgspec.structs.astuple(self))  # type: ignore[arg-type]
        return f"{self.kind}({values})" if values else self.kind


class FullAttention(Reads, msgspec.Struct, frozen=True, tag="full_attention"):
    """Every earlier position stays visible."""

    def first(self, position: Any) -> Any:
        return 0


FULL_ATTENTION = FullAttention()


class SlidingWindow(Reads, msgspec.Struct, frozen=True, tag="sliding_window"):
    """A token reads itself and the `window` - 1 positions before it."""

    window: int

    def first(self, position: Any) -> Any:
        return position - (self.window - 1)

    @property
    def period(self) -> int:
        return 1


class Chunks(Reads, msgspec.Struct, frozen=True, tag="chunks"):
    """A token reads what lies before it in its chunk of `size` positions (Llama 4 calls it chunked attention)."""

    size: int

    def first(self, position: Any) -> Any:
        return position // self.size * self.size

    @property
    def period(self) -> int:
        return self.size
