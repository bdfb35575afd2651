"""Parts of Inferir that not every installation has: the libraries that an extra of the package brings."""

from __future__ import annotations

import importlib.util

from inferir.ir.errors import MissingExtraError

LIBRARIES = {
    "compile": (
        "accelerate",
        "gguf",
        "huggingface_hub",
        "ml_dtypes",
        "networkx",
        "safetensors",
        "sentencepiece",
        "sympy",
        "torch",
        "transformers",
        "triton",
        "tvm",
    ),
    "bench": ("matplotlib",),
    "testing": ("hypothesis",),
}
"""Importable names by extra."""


def lacks(extra: str) -> str | None:
    """The library of `extra` that is not installed, and the remedy; None if all are. Imports none of them."""
    absent = next((name for name in LIBRARIES[extra] if importlib.util.find_spec(name) is None), None)
    return absent and f"{absent}, which is not installed: pip install 'inferir[{extra}]'"


def require(what: str, extra: str) -> None:
    """Raises `MissingExtraError`, in which `what` needs a library and the extra brings it, unless all are installed."""
    if (reason := lacks(extra)) is not None:
        raise MissingExtraError(f"{what} needs {reason}")
