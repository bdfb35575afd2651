"""Schema of an artifact's manifest. Plain data: `inferir.ir.contract.artifact` reads, checks and writes it.

Sizes and offsets are in bytes. Shapes hold ints and the symbol names of `inferir.ir.graph.dims` ("T", "S", ...).
"""

from __future__ import annotations

from typing import Any

import msgspec

from inferir.ir.contract.abi import ABI_VERSION
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.symbols import COUNTED, Limits
from inferir.ir.contract.target import Target
from inferir.ir.graph.dtypes import DType

FORMAT_VERSION = 3
"""Version of the schema; a reader accepts exactly its own."""

ALIGNMENT = 64
"""Kernels use aligned vector loads: every tensor, arena buffer and cache starts at a multiple of this many bytes."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one file: BLAKE3 in hexadecimal (`ir/system/checksum.py`) and size."""

    blake3: str
    bytes: int


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a packed weight lies: `file` relative to the artifact, `offset` from the start of that file."""

    file: str
    offset: int
    nbytes: int
    dtype: DType
    shape: tuple[int, ...]


class IORecord(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a step."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]


class ArenaArg(msgspec.Struct, frozen=True, array_like=True, tag="arena"):
    """An intermediate buffer at `offset` in the arena."""

    offset: int


class WeightArg(msgspec.Struct, frozen=True, array_like=True, tag="weight"):
    """A packed weight, by name."""

    name: str


class InputArg(msgspec.Struct, frozen=True, array_like=True, tag="input"):
    """A step input, by name."""

    name: str


class OutputArg(msgspec.Struct, frozen=True, array_like=True, tag="output"):
    """A step output, by name."""

    name: str


class KVArg(msgspec.Struct, frozen=True, array_like=True, tag="kv"):
    """A tensor of a layer's cache: `role` is its name in the spec of KV group number `group`."""

    group: int
    layer: int
    role: str


class ResidentArg(msgspec.Struct, frozen=True, array_like=True, tag="resident"):
    """A resident buffer, by name."""

    name: str


Arg = ArenaArg | WeightArg | InputArg | OutputArg | KVArg | ResidentArg


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel call of a step program; `args` match the kernel's `params` in order."""

    kernel: int
    args: tuple[Arg, ...]


class KernelParam(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer parameter of a kernel: `dtype` is its element type in the kernel's own spelling."""

    name: str
    dtype: str


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of a bucket's library.

    `region` is the hash of its region's canonical text, `provenance` the module paths it computes. `made_by`: the
    override of another distribution that its text comes from; "" for the code generator's own.
    """

    id: int
    name: str
    region: str
    anchor: str
    params: tuple[KernelParam, ...]
    tile: dict[str, int] = {}
    provenance: tuple[str, ...] = ()
    made_by: str = ""


class BucketRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A step program for steps of `lo` <= T < `hi` tokens.

    With `decode`, every sequence contributes exactly one token. `attn_tile` is the largest token count of an attention
    work item. `scratch_bytes` is what each worker thread needs. `replaced`: SHA-256 of the stages of code generation
    that came from a file instead, by file name.
    """

    name: str
    lo: int
    hi: int
    decode: bool
    library: str
    kernels: tuple[KernelRecord, ...]
    program: tuple[Call, ...]
    attn_tile: int
    scratch_bytes: int = 0
    replaced: dict[str, str] = {}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that decides a model's numbers or texts, and where it was found.

    subject: what is decided, such as "eos token", "chat template" or "rope"; value: as people read it; source: the file
    and key that said so.
    """

    subject: str
    value: str
    source: str


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What serving needs to know about the model. Every id in `eos_token_ids` ends a generation.

    tool_style: how its chat template writes tool calls ("hermes" or "json"); None if it does not, or in another way.
    decisions: what decided numbers and texts, and where it was found; for people, an older artifact has none.
    """

    name: str
    architecture: str
    dtype: DType
    vocab_size: int
    hidden_size: int
    num_layers: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    parameters: int = 0
    tool_style: str | None = None
    decisions: tuple[Decision, ...] = ()
    facts: dict[str, Any] = {}


class PluginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of another distribution that took part in making the artifact.

    kind: the entry point's group without "inferir."; name: the entry's; distribution, version: whose it was. serves:
    whether it is needed to serve the artifact as well; detail: what it did, for people.
    """

    kind: str
    name: str
    distribution: str
    version: str
    serves: bool = False
    detail: str = ""


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The memory table: weights and arena once, `scratch_bytes` per worker thread, the cache per block (all layers)."""

    weight_bytes: int
    arena_bytes: int
    scratch_bytes: int
    kv_block_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole artifact.

    `digest` covers the manifest's own bytes and is filled in when it is written. `counts` are the symbols whose values
    kernels receive, in order. `residents` are buffers that keep their content from step to step, zeros at first; the
    host may change them in between. `plugins` are the entries of other distributions that took part.
    """

    digest: str = "0" * 64
    format: int = FORMAT_VERSION
    abi: int = ABI_VERSION
    counts: tuple[str, ...] = tuple(symbol.name for symbol in COUNTED)
    model: ModelRecord
    target: Target
    limits: Limits
    memory: MemoryRecord
    inputs: tuple[IORecord, ...]
    outputs: tuple[IORecord, ...]
    residents: tuple[IORecord, ...] = ()
    kv: tuple[KVCacheGroup, ...]
    buckets: tuple[BucketRecord, ...]
    weights: dict[str, TensorRecord]
    files: dict[str, FileRecord]
    options: dict[str, Any] = {}
    versions: dict[str, str] = {}
    plugins: tuple[PluginRecord, ...] = ()
