"""What a layer keeps per token, and how its cache memory is divided into blocks.

One `KVCacheSpec` describes the cache of one layer: which tensors it consists of, how one block of each is laid out,
what a token reads (`kv_reads`), and which manager of the runtime decides what a sequence holds. A block (page) holds
`block_size` token slots; token slot `block * block_size + offset` is one token's place. Block 0 is the null block: it
is never handed out, and stands in block tables for positions that are not kept.

A new kind of cache is a spec class in the registry below, a manager unless that of its base class will do, and kernels;
what tokens read of a cache is a class in the same registry. Both may be entry points of the group `inferir.kv` as well,
whose name is the class's tag.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import msgspec

from inferir.ir.contract.kv_reads import FULL_ATTENTION, Chunks, FullAttention, Reads, SlidingWindow
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

    block_size: token slots per block. reads: what a token reads. manager: "module:class" of what keeps a sequence's
    blocks, for this spec and those derived from it.
    """

    __slots__ = ()

    block_size: int
    reads: Reads = FULL_ATTENTION
    manager: ClassVar[str] = "inferir.runtime.kv.managers:KVManager"

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        """The spec for people."""
        return f"{self.kind}, {self.reads.text}"

    @property
    def tensors(self) -> tuple[KVTensor, ...]:
        """What a layer stores, in the order in which its kernels take the tensors."""
        raise NotImplementedError(type(self).__name__)

    @property
    def page_bytes(self) -> int:
        """Bytes that one block takes in one layer."""
        return sum(t.nbytes for t in self.tensors)

    def first_block(self, position: int) -> int:
        """The first block that the token at `position`, and those after it, read."""
        return max(0, int(self.reads.first(position))) // self.block_size

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens keeps between two steps."""
        return -(-tokens // self.block_size) - self.first_block(tokens)


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


class AttentionSpec(KVCacheSpec, msgspec.Struct, frozen=True, kw_only=True, tag="attention"):
    """Keys and values of `kv_heads` heads: `head_dim` elements per key and `value_dim` per value, stored as `dtype`."""

    block_size: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType
    reads: Reads = FULL_ATTENTION

    @property
    def text(self) -> str:
        return f"{self.reads.text}, {self.kv_heads} KV head{'s' * (self.kv_heads > 1)} of {self.head_dim}"

    @property
    def tensors(self) -> tuple[KVTensor, ...]:
        sizes = (("k", self.head_dim), ("v", self.value_dim))
        return tuple(attention_tensor(r, self.kv_heads, n, self.block_size, self.dtype) for r, n in sizes)


Kind = type[KVCacheSpec] | type[Reads]


def _check(kind: Any) -> str | None:
    derived = isinstance(kind, type) and issubclass(kind, (KVCacheSpec, Reads)) and issubclass(kind, msgspec.Struct)
    return None if derived else "it is not a struct derived from KVCacheSpec or Reads"


KV_KINDS: PluginRegistry[Kind] = PluginRegistry("kv", "KV cache kind", ArtifactError, _check)
KV_KINDS.add("attention", AttentionSpec)
KV_KINDS.add("full_attention", FullAttention)
KV_KINDS.add("sliding_window", SlidingWindow)
KV_KINDS.add("chunks", Chunks)


def decode_spec(type_: type, record: Any) -> Any:
    """Decoding hook of msgspec: a spec or a rule from its record. Raises `ArtifactError` for a kind that is not
    registered.
    """
    if type_ not in (KVCacheSpec, Reads):
        raise NotImplementedError(type_.__name__)
    kind = record.get("type") if isinstance(record, dict) else None
    try:
        found = KV_KINDS.get(str(kind))
        if not issubclass(found, type_):
            raise ArtifactError(f"the KV cache kind {kind!r} is not derived from {type_.__name__}")
        return msgspec.convert(record, found, dec_hook=decode_spec)
    except ArtifactError as error:
        raise ArtifactError(f"manifest.json: {str(error).removeprefix('manifest.json: ')}") from None


def parse_reads(text: str) -> Reads | None:
    """The rule in a graph's text (see `Reads.__str__`), None if it has not the form of one. Raises `IRError`."""
    form = re.fullmatch(r"([a-z]\w*)(?:\((\d+(?:,\d+)*)\))?", text)
    if form is None:
        return None
    values = [int(v) for v in form[2].split(",")] if form[2] else []
    try:
        rule = KV_KINDS.get(form[1])(*values)
    except (ArtifactError, TypeError) as error:
        raise IRError(f"{text}: {error}") from None
    if not isinstance(rule, Reads):
        raise IRError(f"{text} does not say what tokens read")
    return rule
