"""Where a row of keys or values goes in a paged cache (layouts: `ir.ops.kv.cache_type`)."""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.lower.rows import static_shape
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Value


@dataclass(frozen=True)
class CacheWrite:
    """A `kv.write` of x [rows, heads, width] at the slots of its rows; all sizes in elements.

    Element (head, channel) at a slot lies at (slot // block_size · heads + head) · page, and from there: keys at
    channel // pack · block_size · pack + slot % block_size · pack + channel % pack, values at
    slot % block_size // pack · width · pack + channel · pack + slot % pack.
    """

    cache: Value
    slots: Value
    keys: bool
    heads: int
    width: int
    block_size: int
    pack: int

    @property
    def page(self) -> int:
        """What one head has in a block."""
        return self.width * self.block_size

    @staticmethod
    def of(value: Value, row: Dim) -> CacheWrite:
        """Raises `CodegenError` for rows that are not [heads, width]."""
        cache, x, slots = value.node.operands
        shape, pack = static_shape(x.type, row), cache.type.shape[-1]
        if len(shape) != 2 or not isinstance(pack, int):
            raise CodegenError(f"kv.write of {x.type} has no row-wise form")
        attrs = value.node.attrs
        return CacheWrite(cache, slots, attrs["role"] == "k", *shape, attrs["block_size"], pack)
