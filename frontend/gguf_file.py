"""GGUF files, through transformers' loader: configuration, tokenizer and dequantised weights.

The loader parses the file's metadata anew for the config, the tokenizer and the weights, element by element.
`reading` makes each of these share one parse, which turns half a minute into seconds for a vocabulary of 50 000
tokens.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from inferir.frontend.gguf_metadata import identity, metadata, open_file
from inferir.frontend.huggingface import api, one_line, quiet
from inferir.frontend.weights import warn_if_not_finite
from inferir.ir.dtypes import DType, from_torch, torch_dtype
from inferir.ir.errors import FrontendError, WeightError
from inferir.ir.types import TensorType

if TYPE_CHECKING:
    import torch

MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether the file starts like a GGUF file."""
    with path.open("rb") as f:
        return f.read(4) == MAGIC


@functools.lru_cache(maxsize=1)
def _metadata(identity: tuple[str, int, int], load: Any) -> Any:
    return load(identity[0], return_tensors=False)


def _without_vocabulary(reader: Any) -> Any:
    """The reader's scalar fields and tensors: what loading weights needs."""
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    return SimpleNamespace(fields=fields, tensors=reader.tensors)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Share one parse of the metadata between all calls of the loader inside.

    Raises `WeightError` for a file that cannot be read.
    """
    gguf: Any = importlib.import_module("gguf")
    loader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    saved = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.load_gguf_checkpoint, loader.tqdm)

    def load(file: Any, return_tensors: bool = False, **options: Any) -> Any:
        if return_tensors:
            gguf.GGUFReader = lambda file, mode="r": _without_vocabulary(open_file(identity(file)))
            return saved[2](file, return_tensors=True, **options)
        gguf.GGUFReader = lambda file, mode="r": open_file(identity(file))
        parsed = _metadata(identity(file), saved[2])
        return {part: dict(content) for part, content in parsed.items()}

    gguf.get_tensor_name_map = functools.lru_cache(maxsize=4)(saved[1])
    loader.load_gguf_checkpoint, loader.tqdm = load, lambda items, **_: items
    try:
        with quiet():
            yield
    except FrontendError:
        raise
    except Exception as error:  # the parser fails in many ways on a damaged file
        raise WeightError(
            f"{path.name}: the GGUF file cannot be read (truncated or damaged?): "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map, loader.load_gguf_checkpoint, loader.tqdm = saved


def load_config(path: Path) -> Any:
    """The configuration that the file describes."""
    hf = api()
    with reading(path):
        return hf.auto_config.from_pretrained(str(path.parent), gguf_file=path.name)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer that the file describes."""
    hf = api()
    with reading(path):
        return hf.auto_tokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def end_token_ids(path: Path) -> tuple[int, ...]:
    """Ids that the file declares to end a text, a turn or a message, in that order."""
    with reading(path):
        stated = metadata(path)
        keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
        return tuple(dict.fromkeys(int(stated[key]) for key in keys if key in stated))


class GgufWeights:
    """The weights of a GGUF file, dequantised to `dtype` under transformers' names (all at once, at the first use)."""

    def __init__(self, path: Path, dtype: DType) -> None:
        self.path = path
        self.dtype = dtype
        self._checked: set[str] = set()

    @functools.cached_property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """All tensors by name. Raises `WeightError` naming tensors of the model that the file lacks."""
        hf = api()
        with reading(self.path):
            model, info = hf.auto_model.from_pretrained(
                str(self.path.parent),
                gguf_file=self.path.name,
                dtype=torch_dtype(self.dtype),
                quantization_config=hf.gguf_config(dequantize=True),
                output_loading_info=True,
            )
        missing = sorted(set(info["missing_keys"]))
        if missing:
            raise WeightError(f"tensor {missing[0]!r} is missing from {self.path.name} ({len(missing)} in all)")
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.tensors))

    def where(self, name: str) -> str:
        return self.path.name

    def type(self, name: str) -> TensorType:
        tensor = self.tensors[name]
        return TensorType(tuple(tensor.shape), from_torch(tensor.dtype))

    def load(self, name: str) -> torch.Tensor:
        tensor = self.tensors[name]
        if name not in self._checked:
            self._checked.add(name)
            warn_if_not_finite(name, self.path.name, tensor)
        return tensor

    def fingerprint(self) -> str:
        """Digest of the whole file and the type it is dequantised to."""
        digest = hashlib.sha256(self.dtype.value.encode())
        with self.path.open("rb") as f:
            while chunk := f.read(1 << 22):
                digest.update(chunk)
        return digest.hexdigest()
