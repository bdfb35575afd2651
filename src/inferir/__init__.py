"""Inferir: compile a language model ahead of time, then serve the compiled artifact.

The public names are resolved on first use, so that `import inferir` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {"LLM": "inferir.api.llm", "SamplingParams": "inferir.api.llm"}

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Resolve a public name; raises AttributeError for an unknown one."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
