"""The one place that touches llguidance, whose compiled core reads grammars and walks them.

The package needs nothing but the standard library. It is imported when the first structured request arrives (some
hundredths of a second). The calls below are those of the versions in `VERSIONS`; any other version is refused.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from inferir.ir.errors import EngineError
from inferir.runtime.structured.vocabulary import Vocabulary

PACKAGE = "llguidance"
VERSIONS = ((1, 9), (2,))  # from the first, below the second
# The core forces tokens where only one text can follow, which takes a tokenizer; we mask every token that fits instead.
_HEAD = '%llguidance {"no_forcing": true}\n'
_MARKER = b"\xff"  # the core takes a token that begins so for a special one; no UTF-8 text has this byte


class Core:
    """The compiled core of llguidance: tokenizers, and matchers that walk a grammar."""

    def __init__(self, module: ModuleType, version: str) -> None:
        self._module = module
        self.version = version

    def tokenizer(self, vocabulary: Vocabulary) -> Any:
        """The vocabulary as the core holds it. Takes 0.15 s for 49,152 tokens, 1.3 s for 262,144, with the GIL held."""
        return self._module.LLTokenizer(
            _Tokens(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.stop_ids)
        )

    def limits(self, **limits: int) -> Any:
        return self._module.LLParserLimits(verbose_errors=False, **limits)

    def matcher(self, tokenizer: Any, grammar: str, limits: Any) -> Any:
        """A fresh walk over `grammar`, text from `lark`. Releases the GIL; failures are in its `is_error`."""
        return self._module.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


class _Tokens:
    """What the core reads of a vocabulary. An empty entry is a token that no grammar ever allows."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = vocabulary.special
        self.tokens = [b"" if t.startswith(_MARKER) else t for t in vocabulary.tokens]
        for token, text in special.items():
            self.tokens[token] = text.encode()
        self.special_token_ids = list(special)
        self.eos_token_id = vocabulary.stop_ids[0]

    def __call__(self, text: object) -> list[int]:
        raise NotImplementedError("grammars are walked without a tokenizer")


def lark(rules: str, schemas: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """A grammar of Lark rules whose start is `start`. schemas: JSON schemas that the rules name as `@key`."""
    grammars: list[dict[str, Any]] = [{"lark_grammar": _HEAD + rules}]
    grammars += [{"name": name, "json_schema": schema} for name, schema in (schemas or {}).items()]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


@cache
def installed_version() -> str | None:
    """Version of the installed package, or None."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def load() -> Core:
    """The compiled core. Raises `EngineError` if it is missing or of a version this adapter does not know."""
    version = installed_version()
    if version is None:
        raise EngineError(f"structured output needs the package {PACKAGE}; install {PACKAGE} {_range()}")
    if not VERSIONS[0] <= _numbers(version) < VERSIONS[1]:
        raise EngineError(f"structured output does not know {PACKAGE} {version}; install {PACKAGE} {_range()}")
    try:
        module = importlib.import_module(PACKAGE)
    except ImportError as e:
        raise EngineError(f"{PACKAGE} {version} has no compiled core for this platform; reinstall it: {e}") from None
    return Core(module, version)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _range() -> str:
    low, high = (".".join(map(str, v)) for v in VERSIONS)
    return f">={low},<{high}"
