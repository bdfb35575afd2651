"""The adapter to transformers: the only place that reaches into the library's internals.

Nothing here is imported before it is needed: a warm compile never loads transformers. `api()` checks the version
and every attribute used elsewhere in the frontend once, so that an incompatible release is one clear error instead
of a failure deep in a trace.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import FrontendError

if TYPE_CHECKING:
    import torch

IMPLEMENTATION = "inferir"
MINIMUM, BELOW = (5, 17), (6, 0)


# What the frontend uses of transformers: name here -> module and attribute.
_USED = {
    "attention_functions": ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    "mask_functions": ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
    "rope_init": ("transformers.modeling_rope_utils", "ROPE_INIT_FUNCTIONS"),
    "auto_config": ("transformers", "AutoConfig"),
    "auto_model": ("transformers", "AutoModelForCausalLM"),
    "auto_tokenizer": ("transformers", "AutoTokenizer"),
    "gguf_config": ("transformers", "GgufConfig"),
    "conversions": ("transformers.conversion_mapping", "get_model_conversion_mapping"),
    "no_init_weights": ("transformers.initialization", "no_init_weights"),
}


@functools.cache
def api() -> SimpleNamespace:
    """What `_USED` names of transformers, imported and checked.

    Raises `FrontendError` naming the version or the attribute that is missing.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise FrontendError(
            f"transformers cannot be imported ({error}); install it to read or trace a model"
        ) from error
    version = str(transformers.__version__)
    parts = tuple(int("".join(c for c in p if c.isdigit()) or 0) for p in version.split(".")[:2])
    if not MINIMUM <= parts < BELOW:
        low, high = ".".join(map(str, MINIMUM)), ".".join(map(str, BELOW))
        raise FrontendError(
            f"transformers {version} is not supported; install a version from {low} up to, but not including, {high}"
        )

    def get(module: str, name: str) -> Any:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise FrontendError(f"transformers {version} has no {module}.{name}, which tracing needs") from error

    return SimpleNamespace(**{name: get(*place) for name, place in _USED.items()})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log output and progress bars of transformers and torch; what matters is raised or warned about by
    the caller.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    progress = importlib.import_module("transformers.utils.logging")
    bars = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            progress.enable_progress_bar()
        logging.disable(before)


def skeleton(config: Any, dtype: torch.dtype, attention: str = IMPLEMENTATION, trust_remote_code: bool = False) -> Any:
    """The model of `config` in eval mode with untouched parameter storage and true buffers.

    Parameters are allocated but never written, so the memory of a large model is not committed; weights are tied as
    the config says. Raises `FrontendError` if transformers cannot build the model.
    """
    hf = api()
    config = copy.deepcopy(config)
    try:
        with quiet(), hf.no_init_weights():
            model = hf.auto_model.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=trust_remote_code
            )
        model.tie_weights()
    except FrontendError:
        raise
    except Exception as error:  # whatever a model's constructor raises
        kind = getattr(config, "model_type", type(config).__name__)
        if isinstance(error, KeyError) and error.args == (attention,):
            raise FrontendError(
                f"models of type {kind!r} choose their attention from a fixed table, so it cannot be captured"
            ) from error
        raise FrontendError(
            f"transformers cannot build a causal language model of type {kind!r}: {one_line(error)}"
        ) from error
    return model.eval().requires_grad_(False)


def tied_names(model: Any) -> dict[str, str]:
    """Alias -> canonical name of parameters that are one tensor (`lm_head.weight` -> `model.embed_tokens.weight`)."""
    first: dict[int, str] = {}
    out: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        canonical = first.setdefault(id(parameter), name)
        if canonical != name:
            out[name] = canonical
    return out


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """The message of an exception, or its type, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_config(config: Any) -> Any:
    """The part of a composite config that describes the language model."""
    getter = getattr(config, "get_text_config", None)
    return getter(decoder=True) if getter is not None else config


def state_types(model: Any) -> Mapping[str, torch.Tensor]:
    """Parameters and persistent buffers by name, aliases of tied parameters left out."""
    aliases = tied_names(model)
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in aliases}


def renames(model: Any) -> tuple[tuple[str, str], ...]:
    """(pattern, replacement) pairs that turn names of older checkpoints into names of `model`, in order.

    Conversions that compute new tensors (merged experts, for instance) are left out: such a checkpoint will lack
    tensors.
    """
    out = []
    for conversion in api().conversions(model):
        if type(conversion).__name__ != "WeightRenaming" or len(conversion.target_patterns) != 1:
            continue
        scope = re.escape(conversion.scope_prefix + ".") if conversion.scope_prefix else ""
        for source in conversion.source_patterns:
            pattern = source.replace("*.", r".*\.")
            end = r"(?!\w)" if re.search(r"[a-zA-Z0-9]$", pattern) else ""
            prefix = f"(?<=^{scope})" if scope else ""
            out.append(
                (prefix + (pattern.removeprefix("^") if scope else pattern) + end, conversion.target_patterns[0])
            )
    return tuple(out)
