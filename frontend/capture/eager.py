"""The independent reference: Hugging Face's own code, eager attention, its own loading of weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inferir.frontend.checkpoint.checkpoint_weights import Weights
from inferir.frontend.checkpoint.huggingface import api, one_line, quiet, skeleton, state_types, text_config, tied_names
from inferir.frontend.source.model_source import ModelSource
from inferir.ir.errors import FrontendError
from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype


def eager_model(source: ModelSource, dtype: DType | None = None) -> Any:
    """The model loaded by transformers with eager attention, in `dtype` (default: the served type)."""
    hf = api()
    kind = torch_dtype(dtype or source.dtype)
    options: dict[str, Any] = {"dtype": kind, "attn_implementation": "eager"}
    if source.kind == "gguf":
        return _gguf_model(source, options).eval()
    try:
        with quiet():
            model = hf.auto_model.from_pretrained(
                str(source.folder), trust_remote_code=source.trust_remote_code, **options
            )
    except Exception as error:  # transformers raises many kinds for a damaged model
        raise FrontendError(f"transformers cannot load {source.spec}: {one_line(error)}") from error
    return model.eval()


def _gguf_model(source: ModelSource, options: Mapping[str, Any]) -> Any:
    """A GGUF model with the weights as transformers reads them, independently of ours. The configuration is ours: its
    loader leaves out what it does not know. So are the weights of an architecture that it does not know at all.
    """
    from inferir.frontend.gguf.gguf_metadata import metadata
    from inferir.frontend.gguf.gguf_reference import known_architectures, reading
    from inferir.frontend.gguf.gguf_weights import GgufWeights

    hf, config = api(), copy.deepcopy(source.config)
    if metadata(source.path)["general.architecture"] not in known_architectures():
        weights = GgufWeights(source.path, from_torch(options["dtype"]))
        return _filled(skeleton(config, options["dtype"], "eager"), weights.load)
    file = {"gguf_file": source.path.name, "quantization_config": hf.gguf_config(dequantize=True)}
    with reading(source.path):
        return hf.auto_model.from_pretrained(str(source.folder), config=config, **file, **options)


def _filled(model: Any, load: Callable[[str], torch.Tensor]) -> Any:
    """`model` with tensors by name as its parameters and buffers, tied ones shared."""
    state = {name: load(name).to(t.dtype) for name, t in state_types(model).items()}
    state.update({alias: state[name] for alias, name in tied_names(model).items()})
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model


def eager_twin(source: ModelSource, weights: Weights, tied: bool) -> Any:
    """The model with eager attention over the very tensors of `weights`: no second copy in memory.

    tied: whether input and output embeddings share a tensor.
    """
    config = copy.deepcopy(source.config)
    config.tie_word_embeddings = text_config(config).tie_word_embeddings = tied
    model = skeleton(config, torch_dtype(source.dtype), "eager", source.trust_remote_code)
    return _filled(model, lambda name: weights.source.load(weights.names[name]))


def model_logits(model: Any, ids: Sequence[int], positions: Sequence[int] | None = None) -> torch.Tensor:
    """Logits [len(ids), V] float32 of one sequence, without cache."""
    tokens = torch.tensor([list(ids)])
    where = torch.arange(len(ids))[None] if positions is None else torch.tensor([list(positions)])
    with torch.no_grad():
        out = model(input_ids=tokens, position_ids=where, use_cache=False).logits[0]
    assert isinstance(out, torch.Tensor)
    return out.float()


def eager_greedy(model: Any, ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """Greedy continuation of one sequence with transformers' cache."""
    # The argument that carries the cache was renamed during transformers 5.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache: Any = None
    step = torch.tensor([list(ids)])
    new: list[int] = []
    with torch.no_grad():
        while len(new) < max_new_tokens:
            out = model(input_ids=step, use_cache=True, **({} if cache is None else {name: cache}))
            cache = out[name] if name in out else out["past_key_values"]
            new.append(int(out.logits[0, -1].float().argmax()))
            step = torch.tensor([new[-1:]])
    return new
