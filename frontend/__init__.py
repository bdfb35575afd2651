"""Read Hugging Face and GGUF models and trace them into a captured IR graph.

The names below are resolved on first use: importing this package loads neither torch nor transformers, and reading
weights or facts never loads transformers for a folder of safetensors. `inferir.frontend.trace.trace` traces a model.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Admission": "admission",
    "FolderWeights": "weights",
    "ModelFacts": "facts",
    "ModelSource": "model",
    "TokenizerFacts": "tokenizer",
    "TracedModel": "trace",
    "WeightSource": "weights",
    "WeightWarning": "weights",
    "Weights": "weights",
    "admit_traced": "admission",
    "check_length": "trace",
    "eager_greedy": "eager",
    "eager_logits": "eager",
    "eager_model": "eager",
    "export_tokenizer": "tokenizer",
    "load_source": "model",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name; raises AttributeError for an unknown one."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
