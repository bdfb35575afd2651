"""Structured output: grammars that decide which tokens may come next, and tool calls on top of them.

Importing this package loads no compiled library; see `binding.py` for what the first structured request loads.
"""

from inferir.runtime.structured.grammar import Grammar, GrammarState
from inferir.runtime.structured.grammar_compiler import GrammarCompiler, GrammarLimits
from inferir.runtime.structured.spec import StructuredSpec

__all__ = ["Grammar", "GrammarCompiler", "GrammarLimits", "GrammarState", "StructuredSpec"]
