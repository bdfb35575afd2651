"""Find a model: a local Hugging Face folder, a GGUF file, or a model id of the Hugging Face hub."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.checkpoint_weights import FolderWeights, WeightSource
from inferir.frontend.checkpoint.config_check import check_config, check_layers, parts
from inferir.frontend.checkpoint.model_files import optional_json, read_json
from inferir.frontend.checkpoint.model_name import display_name
from inferir.frontend.gguf.gguf_metadata import file_digest, part_files, split_models
from inferir.ir.errors import FrontendError, ModelNotFoundError
from inferir.ir.graph.dtypes import DType

HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py"]
TOKENIZER_FILES = (
    "*token*.json",
    "chat_template*",
    "generation_config.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "additional_chat_templates/*.jinja",
    "config.json",
)

DTYPES = dict.fromkeys(("float32", "f32", "float"), DType.F32) | dict.fromkeys(("bfloat16", "bf16"), DType.BF16)
STORED = {
    **dict.fromkeys(("float32", "float", "float64", "double"), DType.F32),
    **dict.fromkeys(("bfloat16", "float16", "half"), DType.BF16),
}
"""Element type of a checkpoint, as config.json spells it -> the type that `auto` serves."""


@dataclass(frozen=True)
class ModelSource:
    """A model on disk and the element type it is served in.

    kind: "folder" (config.json and safetensors) or "gguf". path: the folder or file. hub_id: what it was downloaded as;
    None for what was on disk. Nothing is read before it is asked for.
    """

    spec: str
    kind: str
    path: Path
    dtype: DType
    trust_remote_code: bool = False
    hub_id: str | None = None

    @property
    def folder(self) -> Path:
        return self.path if self.kind == "folder" else self.path.parent

    @property
    def name(self) -> str:
        """A short name without path, see `display_name`."""
        return display_name(self.path, self.hub_id)

    @functools.cached_property
    def config(self) -> Any:
        """The transformers configuration. Raises `FrontendError` if there is none, or it is damaged or of an unknown
        type.
        """
        from inferir.frontend.checkpoint.huggingface import api, one_line, quiet
        from inferir.frontend.gguf import gguf_file

        if self.kind == "gguf":
            return gguf_file.load_config(self.path)
        check_layers(self.stated_config, lambda: len(self.weights.names()))
        try:
            with quiet():
                return api().auto_config.from_pretrained(str(self.path), trust_remote_code=self.trust_remote_code)
        except Exception as error:  # transformers raises many kinds for a config it does not understand
            if "custom code" in str(error) and not self.trust_remote_code:
                raise FrontendError(
                    f"{self.spec} is implemented by code of its own, which is not run unless trust_remote_code is set; "
                    "read it first"
                ) from error
            raise FrontendError(f"config.json of {self.spec}: {type(error).__name__}: {one_line(error)}") from error

    @functools.cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """The model's generation defaults ({} if it has none)."""
        if self.kind == "gguf":
            from inferir.frontend.gguf.gguf_file import end_token_ids, generation_defaults

            ids = list(end_token_ids(self.path))
            return {**generation_defaults(self.path), **({"eos_token_id": ids} if ids else {})}
        return optional_json(self.path / "generation_config.json")

    @functools.cached_property
    def stated_config(self) -> Mapping[str, Any]:
        """config.json as it stands ({} for a GGUF file)."""
        return read_json(self.path / "config.json") if self.kind == "folder" else {}

    @functools.cached_property
    def weights(self) -> WeightSource:
        if self.kind == "gguf":
            from inferir.frontend.gguf.gguf_weights import GgufWeights

            return GgufWeights(self.path, self.dtype)
        return FolderWeights(self.path, self.stated_config.get("transformers_weights"))

    @functools.cached_property
    def separate_head(self) -> tuple[str, str] | None:
        """See `FolderWeights.separate_head`; None for a GGUF file, whose config already says it."""
        return self.weights.separate_head() if isinstance(self.weights, FolderWeights) else None

    def description_digest(self) -> str:
        """Hex digest of what decides the traced graph: the configuration, the served type, and whether the checkpoint
        has an output head of its own.

        Imports neither torch nor transformers. Of a GGUF file the whole content counts.
        """
        if self.kind == "gguf":
            body = self._file_digest
        else:
            described = [self.stated_config, self.generation_config, self.separate_head is None]
            body = json.dumps(described, sort_keys=True)
            code = sorted(self.path.glob("*.py")) if self.trust_remote_code else []
            body += "".join(f" {f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in code)
        return hashlib.sha256(f"{self.kind} {self.dtype.value} {body}".encode()).hexdigest()

    def tokenizer_digest(self) -> str:
        """Hex digest of the files that describe tokenizer, chat template and generation defaults.

        The name of a GGUF file counts: what is exported says where it was found.
        """
        if self.kind == "gguf":
            return hashlib.sha256(f"{self.path.name} {self._file_digest}".encode(errors="surrogateescape")).hexdigest()
        total = hashlib.sha256()
        for file in sorted({f for pattern in TOKENIZER_FILES for f in self.path.glob(pattern) if f.is_file()}):
            total.update(f"{file.relative_to(self.path)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()

    @functools.cached_property
    def _file_digest(self) -> str:
        return file_digest(self.path)


def load_source(
    spec: str,
    dtype: DType | str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> ModelSource:
    """Find the model that `spec` names.

    spec: a model folder, a GGUF file (or a folder that holds just one), or a hub id such as `org/name`, which is
    downloaded. dtype: element type to serve; "auto" takes the checkpoint's, bfloat16 for half precision and GGUF.
    Raises `ModelNotFoundError` if there is no such model, `FrontendError` for a folder that is not a model.
    """
    path = _local(spec)
    if path is not None and path.is_dir():
        return _folder_source(spec, path, dtype, trust_remote_code)
    if path is not None:
        return _file_source(spec, path, dtype, trust_remote_code)
    if not HUB_ID.fullmatch(spec) or spec.endswith(".gguf"):
        raise ModelNotFoundError(f"no such model: {spec!r} is not a folder, a GGUF file or a hub id")
    return _folder_source(spec, _download(spec, revision), dtype, trust_remote_code, hub_id=spec)


def _local(spec: str) -> Path | None:
    """The folder or file that `spec` names, None if there is none. What exists is never taken for a hub id.

    Raises `ModelNotFoundError` for what is there but neither, such as a link to nothing or a device.
    """
    if not spec:
        raise ModelNotFoundError("no such model: the name is empty")
    try:
        path = Path(spec).expanduser()
        if path.is_dir() or path.is_file():
            return path
        there = path.exists() or path.is_symlink()
    except (OSError, ValueError, RuntimeError) as error:  # not allowed, too long, a zero byte, an unknown home
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(f"no such model: {spec!r} cannot be looked at ({reason})") from error
    if there:
        raise ModelNotFoundError(f"no such model: {spec!r} is neither a folder nor a file (a broken link, a device?)")
    return None


def _download(spec: str, revision: str | None) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    from inferir.frontend.checkpoint.huggingface import one_line

    try:
        return Path(hub.snapshot_download(spec, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:  # network, authorisation, unknown repository or revision
        at = f" at revision {revision!r}" if revision else ""
        raise ModelNotFoundError(
            f"no such model: {spec!r} is not a local folder or file, and the hub did not deliver it{at} "
            f"({type(error).__name__}: {one_line(error, 160)})"
        ) from error


def _file_source(spec: str, path: Path, dtype: DType | str, trust: bool, hub_id: str | None = None) -> ModelSource:
    try:
        with path.open("rb") as f:
            magic = f.read(4)
    except OSError as error:
        raise FrontendError(f"{spec!r} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise FrontendError(f"{spec!r} is not a GGUF file; pass the model's folder")
    part_files(path)  # raises for a part that is missing or not the first
    return ModelSource(spec, "gguf", path, _served(dtype, {}), trust, hub_id)


def _folder_source(spec: str, path: Path, dtype: DType | str, trust: bool, hub_id: str | None = None) -> ModelSource:
    try:
        described = (path / "config.json").exists()
        files = [] if described else split_models(sorted(f for f in path.glob("*.gguf") if f.is_file()))
    except OSError as error:
        raise FrontendError(f"{spec!r} cannot be read: {error.strerror}") from error
    if described:
        config = read_json(path / "config.json")
        check_config(config)
        check_supported(config)
        return ModelSource(spec, "folder", path, _served(dtype, config, path), trust, hub_id)
    if len(files) == 1:
        return _file_source(spec, files[0], dtype, trust, hub_id)
    if files:
        raise FrontendError(f"{spec!r} holds several GGUF files ({', '.join(f.name for f in files)}); name one of them")
    if (path / "adapter_config.json").is_file():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        named = f" {base!r}" if isinstance(base, str) and base else ""
        raise ModelNotFoundError(
            f"no such model: the folder {spec!r} holds an adapter (adapter_config.json) without its base model"
            f"{named}; merge it into that (merge_and_unload of PEFT), save the result and pass that"
        )
    raise ModelNotFoundError(f"no such model: the folder {spec!r} has no config.json and no GGUF file")


def check_supported(config: Mapping[str, Any]) -> None:
    """Refuse what config.json says about the weights and the frontend does not do. Raises `FrontendError`."""
    for where, part in parts(config):
        for key in ("quantization_config", "compression_config"):
            stated = part.get(key)
            if stated:
                method = stated.get("quant_method") if isinstance(stated, Mapping) else None
                raise FrontendError(
                    f"config.json: {where}{key}: checkpoints quantised with {method or 'an unnamed method'} are not "
                    "supported; use the model's unquantised checkpoint"
                )


def _served(dtype: DType | str, config: Mapping[str, Any], folder: Path | None = None) -> DType:
    """The element type to serve; where the config does not state the checkpoint's, its tensors do."""
    if isinstance(dtype, DType):
        return dtype
    if dtype != "auto":
        if dtype not in DTYPES:
            raise FrontendError(f"dtype {dtype!r} is not supported; use auto, float32 or bfloat16")
        return DTYPES[dtype]
    key, stored = stated_dtype(config)
    if stored is None and folder is not None:
        entries = FolderWeights(folder, config.get("transformers_weights")).entries
        types = {e.type.dtype for e in entries.values() if e.type and e.type.dtype.is_float}
        stored = "float32" if types and all(t in (DType.F32, DType.F64) for t in types) else "bfloat16"
    name = str(stored or "bfloat16").removeprefix("torch.")
    if name not in STORED:
        raise FrontendError(f"config.json: {key} is {stored!r}, not one of {', '.join(STORED)}; set --dtype")
    return STORED[name]


def stated_dtype(config: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of config.json that states the checkpoint's element type, and what it says ("", None if none does)."""
    for where, part in parts(config):
        for key in ("dtype", "torch_dtype"):
            if part.get(key) not in (None, "", "auto"):
                return where + key, part[key]
    return "", None
