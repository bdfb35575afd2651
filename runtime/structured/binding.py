"""The one place that touches xgrammar: its compiled core, loaded without its Python package.

`import xgrammar` loads torch, transformers and triton, which a serving process must not carry; the compiled core needs
none of them, only `tvm_ffi`, the small foreign-function layer it is built on. So this module finds the library next to
the package's files and registers its classes itself. `tvm_ffi` in turn imports torch if it can, to work around a clash
on Windows; unless torch is loaded already, it is kept from doing so.

Loading takes about 0.2 s, once per process and only when the first structured request arrives. The signatures below
are those of the versions in `VERSIONS`; any other version is refused.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from inferir.ir.errors import EngineError

PACKAGE = "xgrammar"
VERSIONS = ((0, 2, 9), (0, 3))  # from the first, below the second
_NAMESPACE = "xgrammar.tvm_ffi_binding"
_CLASSES = ("CompiledGrammar", "Grammar", "GrammarCompiler", "GrammarMatcher", "TokenizerInfo")
_LOOSE_CLASS = '[^\\"\\\\\\r\\n]'  # as the core prints it
_STRING_CLASS = '[^\\0-\\x1f\\"\\\\]'
_LOCK = threading.Lock()


class Core:
    """Classes of the compiled core, by name; instances are made by `create`."""

    def __init__(self, classes: dict[str, Any], version: str) -> None:
        self._classes = classes
        self.version = version

    def tokenizer_info(self, vocabulary: list[bytes], stop_ids: list[int]) -> Any:
        """A vocabulary given as plain bytes per id; an empty entry is a token that no grammar ever allows."""
        return self._create("TokenizerInfo", vocabulary, 0, len(vocabulary), stop_ids, False)

    def compiler(self, info: Any) -> Any:
        """A compiler with one thread and without a cache; ours sits above it."""
        return self._create("GrammarCompiler", info, 1, False, -1, False)

    def from_json_schema(self, compiler: Any, schema: str, *, strict: bool, whitespace: int) -> Any:
        """Compile a schema; at most `whitespace` blanks between two JSON tokens; keys in the order of the schema.

        The core lets strings with a length hold raw control characters, which JSON forbids; that is mended on the way.
        """
        rules = self._classes["Grammar"].from_json_schema(schema, True, None, None, strict, whitespace, False, False)
        text = str(rules.to_string())
        if _LOOSE_CLASS in text:
            return self.from_ebnf(compiler, text.replace(_LOOSE_CLASS, _STRING_CLASS))
        return compiler.compile_json_schema(schema, True, None, None, strict, whitespace, False)

    def from_regex(self, compiler: Any, pattern: str) -> Any:
        return compiler.compile_regex(pattern)

    def from_ebnf(self, compiler: Any, text: str) -> Any:
        """Compile a grammar in the GBNF notation, whose start rule is `root`."""
        return compiler.compile_grammar_from_strings(text, "root")

    def check_regex(self, pattern: str) -> None:
        """Raises `RuntimeError` if `pattern` cannot be read."""
        self._classes["Grammar"].from_regex(pattern, False)

    def serialize(self, compiled: Any) -> str:
        return str(compiled.serialize_json())

    def deserialize(self, text: str, info: Any) -> Any:
        return self._classes["CompiledGrammar"].deserialize_json(text, info)

    def memory_bytes(self, compiled: Any) -> int:
        return int(compiled.memory_size_bytes())

    def matcher(self, compiled: Any, stop_ids: list[int] | None = None) -> Any:
        """A fresh walk over `compiled` that ends with one of the stop ids (default: those of the vocabulary)."""
        return self._create("GrammarMatcher", compiled, stop_ids, False, -1, None)

    def _create(self, name: str, *arguments: Any) -> Any:
        made = self._classes[name].__new__(self._classes[name])
        made.__ffi_init__(*arguments)
        return made


@cache
def installed_version() -> str | None:
    """Version of the installed package, or None."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def load() -> Core:
    """The compiled core. Raises `EngineError` if it is missing or of a version this adapter does not know."""
    with _LOCK:
        return _load()


@cache
def _load() -> Core:
    version = installed_version()
    if version is None:
        raise EngineError(f"structured output needs the package {PACKAGE}; install {PACKAGE} {_range()}")
    if not VERSIONS[0] <= _numbers(version) < VERSIONS[1]:
        raise EngineError(f"structured output does not know {PACKAGE} {version}; install {PACKAGE} {_range()}")
    spec = importlib.util.find_spec(PACKAGE)
    library = Path(spec.origin).parent / "libxgrammar_bindings.so" if spec and spec.origin else None
    if library is None or not library.exists():
        raise EngineError(f"{PACKAGE} {version} has no compiled core for this platform; reinstall it")
    ffi = _import_ffi()
    ffi.load_module(str(library))
    return Core({name: _register(ffi, name) for name in _CLASSES}, version)


def _register(ffi: ModuleType, name: str) -> Any:
    return ffi.register_object(f"{_NAMESPACE}.{name}")(type(name, (ffi.Object,), {}))


def _import_ffi() -> ModuleType:
    """`tvm_ffi`, without torch unless the process has it already."""
    if "torch" in sys.modules or "tvm_ffi" in sys.modules:
        return importlib.import_module("tvm_ffi")
    sys.modules["torch"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        return importlib.import_module("tvm_ffi")
    finally:
        del sys.modules["torch"]


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _range() -> str:
    low, high = (".".join(map(str, v)) for v in VERSIONS)
    return f">={low},<{high}"
