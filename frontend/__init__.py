"""Read Hugging Face and GGUF models and trace them into a captured IR graph.

The names below are resolved on first use: importing this package loads neither torch nor transformers, and reading
weights or facts never loads transformers for a folder of safetensors. `inferir.frontend.capture.trace.trace` traces a
model.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "TraceCheck": "capture.trace_check",
    "FolderWeights": "checkpoint.checkpoint_weights",
    "ModelFacts": "facts",
    "ModelSource": "source.model_source",
    "TokenizerFacts": "source.export_tokenizer",
    "TracedModel": "capture.trace",
    "WeightSource": "checkpoint.checkpoint_weights",
    "WeightWarning": "checkpoint.checkpoint_weights",
    "Weights": "checkpoint.checkpoint_weights",
    "check_trace": "capture.trace_check",
    "check_length": "capture.trace",
    "eager_greedy": "capture.eager",
    "eager_logits": "capture.eager",
    "eager_model": "capture.eager",
    "export_tokenizer": "source.export_tokenizer",
    "load_source": "source.model_source",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name; raises AttributeError for an unknown one."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
