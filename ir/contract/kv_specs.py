"""What a layer keeps per token, and how its cache memory is divided into blocks.

One `KVCacheSpec` describes the cache of one layer: which tensors it consists of, how one block of each is laid out, how
far back a token reads, and which manager of the runtime decides what a sequence holds. A block (page) holds
`block_size` token slots; token slot `block * block_size + offset` is one token's place. Block 0 is the null block: it
is never handed out, and stands in block tables for positions that are not kept.

A new kind of cache is a spec class in the registry below (or an entry point of the group `inferir.kv`, whose name is
the class's tag), a manager (often that of its base class), and kernels.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

from inferir.ir.errors import ArtifactError, IRError
from inferir.ir.graph.dtypes import DType
from inferir.ir.plugin_registry import PluginRegistry

NULL_BLOCK = 0


class KVTensor(msgspec.Struct, frozen=True):
    """One tensor of a layer's cache. `shape` and `nbytes` are those of one block; blocks lie one after another."""

    role: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class KVCacheSpec:
    """Base of all specs, which are tagged structs: the tag is the name of the kind.

    block_size: token slots per block. manager: "module:class" of what keeps a sequence's blocks, for this spec and
    those derived from it.
    """

    __slots__ = ()

    block_size: int
    manager: ClassVar[str] = ""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        """The spec for people."""
        return self.kind.replace("_", " ")

    @property
    def tensors(self) -> tuple[KVTensor, ...]:
        """What a layer stores, in the order in which its kernels take the tensors."""
        raise NotImplementedError(type(self).__name__)

    @property
    def page_bytes(self) -> int:
        """Bytes that one block takes in one layer."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def reach(self) -> int | None:
        """How many positions a token reads, the last of them its own; None for all."""
        return None

    def covers(self, other: KVCacheSpec) -> bool:
        """Whether a layer of `other` finds all that it reads where blocks are kept for this spec."""
        mine, its = self.reach, other.reach
        enough = mine is None or (its is not None and its <= mine)
        return enough and self.block_size == other.block_size and self.tensors == other.tensors

    def first_read(self, position: int) -> int:
        """The first position that the token at `position`, and those after it, read."""
        return 0 if self.reach is None else max(0, position - self.reach + 1)

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens keeps between two steps."""
        return -(-tokens // self.block_size) - self.first_read(tokens) // self.block_size


def kpack(dtype: DType) -> int:
    """How many consecutive elements attention's caches keep together: pairs of 16-bit ones, for the dot product."""
    return 2 if dtype.itemsize == 2 else 1


def attention_tensor(role: str, kv_heads: int, size: int, block_size: int, dtype: DType) -> KVTensor:
    """Keys ("k"), a block [kv_heads, size / p, block_size, p], or values ("v"), [kv_heads, block_size / p, size, p].

    Keys keep tokens in lanes, values keep channels in lanes, so that attention streams both in order; p = kpack(dtype).
    Raises `IRError` if p does not divide them.
    """
    p = kpack(dtype)
    if block_size % p:
        raise IRError(f"block size {block_size} is not a multiple of {p}")
    if role == "v":
        return KVTensor(role, (kv_heads, block_size // p, size, p), dtype)
    if size % p:
        raise IRError(f"head size {size} is not a multiple of {p}")
    return KVTensor(role, (kv_heads, size // p, block_size, p), dtype)


class AttentionSpec(KVCacheSpec, msgspec.Struct, frozen=True, kw_only=True):
    """Keys and values of `kv_heads` heads: `head_dim` elements per key and `value_dim` per value, stored as `dtype`."""

    block_size: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType

    @property
    def text(self) -> str:
        window = "" if self.reach is None else f" of {self.reach:,}"
        return f"{super().text}{window}, {self.kv_heads} KV head{'s' * (self.kv_heads > 1)} of {self.head_dim}"

    @property
    def tensors(self) -> tuple[KVTensor, ...]:
        sizes = (("k", self.head_dim), ("v", self.value_dim))
        return tuple(attention_tensor(r, self.kv_heads, n, self.block_size, self.dtype) for r, n in sizes)


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="full_attention"):
    """Every earlier position stays visible, so every block is kept until its request ends."""

    manager: ClassVar[str] = "inferir.runtime.kv.managers:FullAttentionManager"


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag="sliding_window"):
    """A token at position p sees positions p - window + 1 … p; blocks wholly behind the window can be given back."""

    manager: ClassVar[str] = "inferir.runtime.kv.managers:SlidingWindowManager"

    window: int

    @property
    def reach(self) -> int | None:
        return self.window


def _check(kind: Any) -> str | None:
    derived = isinstance(kind, type) and issubclass(kind, KVCacheSpec) and issubclass(kind, msgspec.Struct)
    return None if derived else "it is not a struct derived from KVCacheSpec"


KV_KINDS: PluginRegistry[type[KVCacheSpec]] = PluginRegistry("kv", "KV cache kind", ArtifactError, _check)
KV_KINDS.add("full_attention", FullAttentionSpec)
KV_KINDS.add("sliding_window", SlidingWindowSpec)


def decode_spec(type_: type, record: Any) -> Any:
    """Decoding hook of msgspec: a spec from its record. Raises `ArtifactError` for a kind that is not registered."""
    if type_ is not KVCacheSpec:
        raise NotImplementedError(type_.__name__)
    kind = record.get("type") if isinstance(record, dict) else None
    try:
        return msgspec.convert(record, KV_KINDS.get(str(kind)))
    except ArtifactError as error:
        raise ArtifactError(f"manifest.json: {error}") from None
