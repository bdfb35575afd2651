"""Weights by name, read when they are needed, and the account of every tensor of a checkpoint.

A `WeightSource` is a checkpoint under its own names. `resolve` matches it with what a model expects and reports
every difference; `Weights` then serves tensors under the model's names, in the types the graph has. Nothing here
imports transformers, and torch only when a tensor is loaded.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from inferir.frontend.checkpoint.checkpoint_files import CheckpointFiles, WeightWarning, checkpoint_files
from inferir.frontend.checkpoint.safetensors_file import Entry, MappedFile, read_header
from inferir.ir.errors import WeightError
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    import torch

# Checkpoint tensors that no model reads: buffers that older versions of transformers saved and that are recomputed.
IGNORED = tuple(
    re.compile(p)
    for p in (
        r"(^|\.)rotary_emb\.inv_freq$",  # rotary frequencies
        r"(^|\.)(attn|attention)\.(bias|masked_bias)$",  # causal masks of GPT-2 and GPT-NeoX
        r"(^|\.)embed_positions\.weights$",  # sinusoidal tables
    )
)


class WeightSource(Protocol):
    """A checkpoint."""

    def names(self) -> tuple[str, ...]:
        """Tensor names as stored, sorted. Raises `WeightError` for a damaged or incomplete checkpoint."""

    def type(self, name: str) -> TensorType:
        """Stored type of a tensor."""

    def load(self, name: str) -> torch.Tensor:
        """The tensor as stored; it must not be written to. Warns once (`WeightWarning`) if it holds NaN or infinity."""

    def where(self, name: str) -> str:
        """The file that holds it, for messages."""

    def fingerprint(self) -> str:
        """Hex digest of all names, types and contents."""


class FolderWeights:
    """The safetensors of a Hugging Face model folder: one file, or shards with an index (`checkpoint_files.py`).

    explicit: the value of `transformers_weights` in config.json.
    """

    def __init__(self, folder: Path, explicit: object = None) -> None:
        self.folder = folder
        self._explicit = explicit
        self._maps: dict[Path, MappedFile] = {}
        self._checked: set[str] = set()

    @cached_property
    def files(self) -> CheckpointFiles:
        """The files that are read. Raises `WeightError` if there are none or one is missing; warns of others."""
        return checkpoint_files(self.folder, self._explicit)

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """All tensors. Raises `WeightError` naming a shard, file or tensor that is missing or damaged."""
        chosen = self.files
        entries: dict[str, Entry] = {}
        for file in chosen.files:
            for name, entry in read_header(file).items():
                if name in entries:
                    raise WeightError(f"tensor {name!r} is in both {entries[name].file.name} and {file.name}")
                entries[name] = entry
        for name, shard in chosen.placed.items():
            if name not in entries:
                raise WeightError(f"tensor {name!r} is missing from {shard}, where {chosen.index} says it is")
        return entries

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.entries))

    def where(self, name: str) -> str:
        return self._entry(name).file.name

    def _entry(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except KeyError:
            raise WeightError(f"tensor {name!r} is not in {self.folder}") from None

    def type(self, name: str) -> TensorType:
        entry = self._entry(name)
        if entry.type is None:
            raise WeightError(
                f"tensor {name!r} in {entry.file.name} has element type {entry.spelling}, which is not supported"
            )
        return entry.type

    def load(self, name: str) -> torch.Tensor:
        self.type(name)
        entry = self._entry(name)
        tensor = self._map(entry.file).tensor(entry)
        if name not in self._checked:
            self._checked.add(name)
            warn_if_not_finite(name, entry.file.name, tensor)
        return tensor

    def _map(self, file: Path) -> MappedFile:
        if file not in self._maps:
            self._maps[file] = MappedFile(file)
        return self._maps[file]

    def separate_head(self) -> tuple[str, str] | None:
        """Names of output head and embedding table if the checkpoint holds both with different contents."""
        heads = [n for n in self.entries if n.endswith(("lm_head.weight", "embed_out.weight"))]
        tables = [n for n in self.entries if n.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))]
        if len(heads) != 1 or len(tables) != 1:
            return None
        head, table = (self.entries[n] for n in (heads[0], tables[0]))
        same = self._map(head.file).bytes(head) == self._map(table.file).bytes(table)
        return None if same else (heads[0], tables[0])

    def fingerprint(self) -> str:
        """Depends on names, types and contents, not on how tensors are spread over files."""

        def digest(name: str) -> bytes:
            entry = self.entries[name]
            content = hashlib.sha256(self._map(entry.file).bytes(entry)).hexdigest()
            return json.dumps([name, entry.spelling, entry.shape, content]).encode()

        names = self.names()
        for file in sorted({e.file for e in self.entries.values()}):
            self._map(file)
        with ThreadPoolExecutor(2) as pool:
            return hashlib.sha256(b"\n".join(pool.map(digest, names))).hexdigest()


def warn_if_not_finite(name: str, where: str, tensor: torch.Tensor) -> None:
    """Warn, naming the tensor, if it holds NaN or infinity."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    low, high = tensor.aminmax()
    if not (low.isfinite() and high.isfinite()):
        bad = int(tensor.numel() - tensor.isfinite().sum())
        message = f"tensor {name!r} in {where} holds {bad} values that are NaN or infinite"
        warnings.warn(message, WeightWarning, stacklevel=3)


class ExpectedWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What a model expects of a checkpoint.

    types: shape and element type of every parameter and persistent buffer. aliases: tied name -> the name in `types`
    it shares a tensor with; a checkpoint may hold either. base_prefix: the model's inner module, whose prefix a
    checkpoint of the bare inner model lacks. ignored: further patterns of tensors to ignore. renames: (pattern,
    replacement) that turn names of older checkpoints into the model's.
    """

    types: dict[str, tuple[tuple[int, ...], DType]]
    aliases: dict[str, str] = {}
    base_prefix: str = ""
    ignored: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()


def resolve(source: WeightSource, expected: ExpectedWeights) -> dict[str, str]:
    """Match a checkpoint with a model: model name -> checkpoint name.

    Raises `WeightError` naming the tensor (and file) for a missing tensor, a wrong shape, or a tensor that belongs
    to a module of the model but is not one of its parameters, as a bias that the config switches off. Any other
    unused tensor is warned about by name.
    """
    present = {_renamed(name, expected.renames): name for name in source.names()}
    present.update({name: name for name in source.names()})
    spelled: dict[str, list[str]] = {name: [name] for name in expected.types}
    for alias, name in expected.aliases.items():
        spelled.setdefault(name, [name]).append(alias)
    out: dict[str, str] = {}
    used: set[str] = set()
    for name, spellings in spelled.items():
        candidates = [c for s in spellings for c in _variants(s, expected.base_prefix)]
        found = [present[c] for c in candidates if c in present]
        used.update(found)
        want = TensorType(*expected.types[name])
        if not found:
            raise WeightError(f"tensor {name!r} ({want}) is missing from the checkpoint")
        out[name] = found[0]
        have = source.type(found[0])
        if have.shape != want.shape:
            shapes = f"shape {list(have.shape)}, but the model's config wants {list(want.shape)}"
            raise WeightError(f"tensor {found[0]!r} in {source.where(found[0])} has {shapes}")
    patterns = [*IGNORED, *(re.compile(p) for p in expected.ignored)]
    spellings = [name for s in spelled.values() for n in s for name in _variants(n, expected.base_prefix)]
    modules = {name.rpartition(".")[0] for name in spellings} - {""}
    for name in sorted(set(present.values()) - used):
        if any(p.search(name) for p in patterns):
            continue
        module, _, leaf = _renamed(name, expected.renames).rpartition(".")
        if module in modules:
            raise WeightError(
                f"tensor {name!r} in {source.where(name)} is not used: the config gives module {module!r} no parameter "
                f"{leaf!r} (is a flag such as attention_bias or mlp_bias missing?)"
            )
        warnings.warn(f"tensor {name!r} in {source.where(name)} is not used by the model", WeightWarning, stacklevel=2)
    return out


def _renamed(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name, count=1)
    return name


def _variants(name: str, base_prefix: str) -> tuple[str, ...]:
    if not base_prefix:
        return (name,)
    prefix = base_prefix + "."
    return (name, name.removeprefix(prefix)) if name.startswith(prefix) else (name, prefix + name)


@dataclass(frozen=True, eq=False)
class Weights(Mapping[str, "torch.Tensor"]):
    """Tensors under the graph's names and in the graph's types, converted when they are read; they must not be written
    to.

    types: what the graph expects; `const.*` names come from `constants`, the others from `source` through `names`.
    """

    source: WeightSource
    types: Mapping[str, TensorType]
    names: Mapping[str, str]
    constants: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        want = torch_dtype(self.types[name].dtype)  # raises KeyError for a name that the graph does not have
        if name in self.constants:
            return self.constants[name]
        tensor = self.source.load(self.names[name])
        if tensor.dtype == want:
            return tensor
        if tensor.is_floating_point() != want.is_floating_point:
            raise WeightError(f"tensor {self.names[name]!r} is {tensor.dtype}, the model needs {want}")
        return tensor.to(want)

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)
