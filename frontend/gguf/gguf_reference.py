"""transformers' own loader of GGUF files: the independent reading of weights that a compiled model is compared with.

The loader parses a file's metadata element by element. `reading` makes it do so faster, which turns half a minute into
seconds for a vocabulary of 50 000 tokens, and shows it all parts of a split model as one file. What the loader leaves
out (scaled rotary embeddings, for instance) comes from our configuration; see `gguf_families`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferir.frontend.checkpoint.huggingface import one_line, quiet
from inferir.frontend.gguf.gguf_metadata import Identity, identity
from inferir.ir.errors import FrontendError, WeightError


@functools.cache
def _reader_class() -> type[Any]:
    gguf: Any = importlib.import_module("gguf.gguf_reader")
    numpy: Any = importlib.import_module("numpy")

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        """GGUFReader that slices a plain array: slicing a memmap object costs ten times as much."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if not hasattr(self, "_plain"):
                self._plain = self.data.view(numpy.ndarray)
            kind = numpy.dtype(dtype).newbyteorder(self.byte_order if override_order is None else override_order)
            return self._plain[offset : offset + kind.itemsize * int(count)].view(kind)

    return Reader


@functools.lru_cache(maxsize=1)
def _open(identity: Identity) -> Any:
    """gguf's reader of the first file without its vocabulary, with the tensors of all. Raises whatever it raises."""
    readers = [_reader_class()(file) for file, _, _ in identity]
    fields = {key: field for key, field in readers[0].fields.items() if not key.startswith("tokenizer.")}
    return SimpleNamespace(fields=fields, tensors=[tensor for reader in readers for tensor in reader.tensors])


def known_architectures() -> tuple[str, ...]:
    """Architectures that the loader has a table for."""
    loader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    return tuple(loader.GGUF_SUPPORTED_ARCHITECTURES)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Let the loader inside read all parts of a model as one file, parsed once.

    Raises `WeightError` for a file that cannot be read.
    """
    gguf: Any = importlib.import_module("gguf")
    loader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    saved = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm)
    gguf.GGUFReader = lambda file: _open(identity(file))
    gguf.get_tensor_name_map = functools.lru_cache(maxsize=4)(saved[1])
    loader.tqdm = lambda items, **_: items
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
        gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm = saved
