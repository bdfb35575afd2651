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

from inferir.frontend.weights import FolderWeights, WeightSource
from inferir.ir.dtypes import DType
from inferir.ir.errors import FrontendError, ModelNotFoundError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
TOKENIZER_FILES = (
    "*token*.json",
    "chat_template*",
    "generation_config.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "config.json",
)

DTYPES = {
    "float32": DType.F32,
    "f32": DType.F32,
    "float": DType.F32,
    "bfloat16": DType.BF16,
    "bf16": DType.BF16,
}


@dataclass(frozen=True)
class ModelSource:
    """A model on disk and the element type it is served in.

    kind: "folder" (config.json and safetensors) or "gguf". path: the folder or file. Nothing is read before it is asked
    for.
    """

    spec: str
    kind: str
    path: Path
    dtype: DType
    trust_remote_code: bool = False

    @property
    def folder(self) -> Path:
        return self.path if self.kind == "folder" else self.path.parent

    @property
    def name(self) -> str:
        """A short name without path."""
        return self.spec if self.spec.count("/") == 1 and HUB_ID.fullmatch(self.spec) else self.path.stem

    @functools.cached_property
    def config(self) -> Any:
        """The transformers configuration. Raises `FrontendError` if there is none, or it is damaged or of an unknown
        type.
        """
        from inferir.frontend import gguf_file
        from inferir.frontend.huggingface import api, one_line, quiet

        if self.kind == "gguf":
            return gguf_file.load_config(self.path)
        read_json(self.path / "config.json")
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
            from inferir.frontend.gguf_file import end_token_ids

            ids = list(end_token_ids(self.path))
            return {"eos_token_id": ids} if ids else {}
        file = self.path / "generation_config.json"
        return read_json(file) if file.is_file() else {}

    @functools.cached_property
    def weights(self) -> WeightSource:
        if self.kind == "gguf":
            from inferir.frontend.gguf_file import GgufWeights

            return GgufWeights(self.path, self.dtype)
        return FolderWeights(self.path)

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
            described = [read_json(self.path / "config.json"), self.generation_config, self.separate_head is None]
            body = json.dumps(described, sort_keys=True)
            code = sorted(self.path.glob("*.py")) if self.trust_remote_code else []
            body += "".join(f" {f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in code)
        return hashlib.sha256(f"{self.kind} {self.dtype.value} {body}".encode()).hexdigest()

    def tokenizer_digest(self) -> str:
        """Hex digest of the files that describe tokenizer, chat template and generation defaults."""
        if self.kind == "gguf":
            return self._file_digest
        total = hashlib.sha256()
        for file in sorted({f for pattern in TOKENIZER_FILES for f in self.path.glob(pattern) if f.is_file()}):
            total.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()

    @functools.cached_property
    def _file_digest(self) -> str:
        with self.path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object. Raises `FrontendError` naming the file."""
    try:
        out = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FrontendError(f"{file.name} is missing from {file.parent}") from None
    except (OSError, ValueError) as error:
        raise FrontendError(f"{file} cannot be read: {error}") from error
    if not isinstance(out, dict):
        raise FrontendError(f"{file} does not hold a JSON object")
    return out


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
    path = Path(spec).expanduser()
    if path.is_file():
        return _file_source(spec, path, dtype, trust_remote_code)
    if path.is_dir():
        return _folder_source(spec, path, dtype, trust_remote_code)
    if not HUB_ID.fullmatch(spec) or spec.endswith(".gguf"):
        raise ModelNotFoundError(f"no such model: {spec!r} is not a folder, a GGUF file or a hub id")
    return _folder_source(spec, _download(spec, revision), dtype, trust_remote_code)


def _download(spec: str, revision: str | None) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    from inferir.frontend.huggingface import one_line

    try:
        return Path(hub.snapshot_download(spec, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:  # network, authorisation, unknown repository or revision
        at = f" at revision {revision!r}" if revision else ""
        raise ModelNotFoundError(
            f"no such model: {spec!r} is not a local folder or file, and the hub did not deliver it{at} "
            f"({type(error).__name__}: {one_line(error, 160)})"
        ) from error


def _file_source(spec: str, path: Path, dtype: DType | str, trust: bool) -> ModelSource:
    with path.open("rb") as f:
        magic = f.read(4)
    if magic != b"GGUF":
        raise FrontendError(f"{spec!r} is not a GGUF file; pass the model's folder")
    return ModelSource(spec, "gguf", path, _served(dtype, {}), trust)


def _folder_source(spec: str, path: Path, dtype: DType | str, trust: bool) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(spec, "folder", path, _served(dtype, read_json(path / "config.json"), path), trust)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _file_source(spec, files[0], dtype, trust)
    if files:
        raise FrontendError(f"{spec!r} holds several GGUF files ({', '.join(f.name for f in files)}); name one of them")
    raise ModelNotFoundError(f"no such model: the folder {spec!r} has no config.json and no GGUF file")


def _served(dtype: DType | str, config: Mapping[str, Any], folder: Path | None = None) -> DType:
    """The element type to serve; where the config does not state the checkpoint's, its tensors do."""
    if isinstance(dtype, DType):
        return dtype
    if dtype != "auto":
        if dtype not in DTYPES:
            raise FrontendError(f"dtype {dtype!r} is not supported; use auto, float32 or bfloat16")
        return DTYPES[dtype]
    nested = config.get("text_config")
    stored = config.get("dtype") or config.get("torch_dtype")
    if not stored and isinstance(nested, Mapping):
        stored = nested.get("dtype") or nested.get("torch_dtype")
    if not stored and folder is not None:
        types = {e.type.dtype for e in FolderWeights(folder).entries.values() if e.type and e.type.dtype.is_float}
        stored = "float32" if types and all(t in (DType.F32, DType.F64) for t in types) else "bfloat16"
    return DType.F32 if str(stored).removeprefix("torch.") in ("float32", "float64") else DType.BF16
