"""Which files of a model folder hold its weights: those that transformers reads, in its order of precedence.

    config.json "transformers_weights"  →  model.safetensors  →  model.safetensors.index.json

Nothing else is ever read; what else looks like weights is warned about by name.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferir.ir.errors import WeightError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ckpt", "*.gguf", "*.onnx")


class WeightWarning(UserWarning):
    """A checkpoint is suspicious but usable; the message names the tensor or file."""


@dataclass(frozen=True)
class CheckpointFiles:
    """The files to read. placed: tensor -> file name as the index `index` says it (empty without one)."""

    files: tuple[Path, ...]
    index: str | None
    placed: Mapping[str, str]

    @property
    def described(self) -> str:
        """For people: what is read."""
        return self.files[0].name if self.index is None else f"{len(self.files)} shards of {self.index}"


def checkpoint_files(folder: Path, explicit: object = None) -> CheckpointFiles:
    """The weight files of a model folder. explicit: config.json's `transformers_weights`, a file name.

    Raises `WeightError` naming a file that is missing, unreadable or contradictory. Warns of weights that are not read.
    """
    known: frozenset[str] = frozenset()
    if explicit is not None:
        chosen = _explicit(folder, explicit)
    elif _present(folder / SINGLE):
        chosen = CheckpointFiles((folder / SINGLE,), None, {})
        known = _warn_of_index(folder)
    elif _present(folder / INDEX):
        chosen = _sharded(folder / INDEX)
    else:
        raise WeightError(f"{folder} holds no {SINGLE} and no {INDEX}{_hint(folder)}")
    _warn_of_others(folder, chosen, known)
    return chosen


def _explicit(folder: Path, name: object) -> CheckpointFiles:
    key = "config.json: transformers_weights"
    if not isinstance(name, str) or Path(name).name != name or not name.endswith((".safetensors", ".index.json")):
        raise WeightError(f"{key} is {name!r}, not the name of a safetensors file or index in this folder")
    if not _present(folder / name):
        raise WeightError(f"{key} names {name}, which is missing from {folder}")
    return _sharded(folder / name) if name.endswith(".json") else CheckpointFiles((folder / name,), None, {})


def _present(file: Path) -> bool:
    """Whether `file` is there. Raises `WeightError` for a folder or a dangling link of that name."""
    try:
        if file.is_file():
            return True
        there = file.is_symlink() or file.exists()
    except OSError as error:
        raise WeightError(f"{file}: cannot be read ({error.strerror})") from error
    if there:
        what = "a link to nothing" if file.is_symlink() else "not a file"
        raise WeightError(f"{file.name} of {file.parent} is {what}; put the weights there or remove it")
    return False


def read_index(index: Path) -> Mapping[str, str]:
    """Tensor -> shard. Raises `WeightError` naming the index if it is damaged."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        damaged = not isinstance(listed, dict) or not all(isinstance(shard, str) for shard in listed.values())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightError(f"{index.name}: the index is damaged ({type(error).__name__})") from error
    if damaged or not listed:
        raise WeightError(f"{index.name}: the index is damaged (its weight_map must map tensors to files)")
    return dict(listed)


def _sharded(index: Path) -> CheckpointFiles:
    placed = read_index(index)
    shards = sorted(set(placed.values()))
    for shard in shards:
        if not shard.isprintable() or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise WeightError(f"{index.name}: the shard name {shard!r} is not a safetensors file of this folder")
        if not _present(index.parent / shard):
            held = sorted(name for name, where in placed.items() if where == shard)
            raise WeightError(f"{shard}: the shard is missing; it should hold {len(held)} tensors, e.g. {held[0]!r}")
    return CheckpointFiles(tuple(index.parent / shard for shard in shards), index.name, placed)


def _warn_of_index(folder: Path) -> frozenset[str]:
    """Say that an index beside the single file is not followed if it contradicts that; returns its shards."""
    try:
        if not (folder / INDEX).is_file():
            return frozenset()
        shards = frozenset(read_index(folder / INDEX).values())
    except (WeightError, OSError) as error:
        _warn(f"{SINGLE} is read; {INDEX} beside it is not: {error}")
        return frozenset()
    if others := sorted(shards - {SINGLE}):
        there = [shard for shard in others if (folder / shard).exists()]
        state = f"({_listed(there)}) are not read" if there else f"({_listed(others)}) are missing"
        _warn(
            f"{SINGLE} is read, as transformers does, and {INDEX} is not: its shards {state}; remove the one that is "
            "out of date"
        )
    return shards


def _warn_of_others(folder: Path, chosen: CheckpointFiles, known: frozenset[str]) -> None:
    """Say which files look like weights and are not read. known: those that were named before."""
    try:
        files = sorted(file.name for file in folder.glob("*.safetensors"))
        adapter = (folder / "adapter_config.json").exists()
    except OSError:
        return
    others = [name for name in files if name not in known.union(file.name for file in chosen.files)]
    if adapter:
        _warn(
            "adapter_config.json: the adapter is not applied, only the model's own weights are read; merge it into "
            "them (merge_and_unload of PEFT) to serve it"
        )
        others = [name for name in others if not name.startswith("adapter_model")]
    if others:
        _warn(f"not read, because transformers reads {chosen.described} only: {_listed(others)}")


def _warn(message: str) -> None:
    warnings.warn(message, WeightWarning, stacklevel=4)


def _hint(folder: Path) -> str:
    """What is there instead, and what to do about it."""
    try:
        if (folder / "adapter_config.json").exists():
            return "; adapter_config.json says that it holds an adapter: merge that into its base model first"
        stray = sorted(file.name for file in folder.glob("*.safetensors"))
        if stray:
            return f"; transformers does not read {_listed(stray)} under that name, rename it or write an index"
        other = [file.name for pattern in _OTHER_FORMATS for file in sorted(folder.glob(pattern))]
    except OSError as error:
        return f"; it cannot be listed ({error.strerror})"
    return f"; {_listed(other)} is not read, convert it to safetensors" if other else ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
