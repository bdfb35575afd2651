"""One grammar compiler for all of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grammars import VOCABULARY

from inferir.ir.errors import RequestError
from inferir.runtime.structured import Grammar, GrammarCompiler, StructuredSpec


@pytest.fixture(scope="session")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY)
    yield made
    made.close()


@pytest.fixture
def compile_(compiler: GrammarCompiler) -> Callable[..., Grammar]:
    return lambda kind, value=None: compiler.compile(StructuredSpec(kind, value))


@pytest.fixture
def reason(compiler: GrammarCompiler) -> Callable[..., str]:
    """The message with which a specification is refused."""

    def find(kind: Any, value: Any = None) -> str:
        with pytest.raises(RequestError) as caught:
            compiler.compile(StructuredSpec(kind, value))
        assert caught.value.field == "structured_outputs"
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return find
