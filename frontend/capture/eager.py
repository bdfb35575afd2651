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
    from inferir.frontend.gguf.gguf_file import GgufWeights
    from inferir.frontend.gguf.gguf_metadata import metadata
    from inferir.frontend.gguf.gguf_reference import known_architectures, reading

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


def eager_twin(source: ModelSource, weights: Weights, tied: bool | None = None) -> Any:
    """The model with eager attention over the very tensors of `weights`: no second copy in memory.

    tied: whether input and output embeddings share a tensor (None: as the config says).
    """
    config = copy.deepcopy(source.config)
    if tied is not None:
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


def eager_logits(
    source: ModelSource, sequences: Sequence[Sequence[int]], dtype: DType | None = None, model: Any = None
) -> list[torch.Tensor]:
    """Logits [len, V] float32 of every sequence, each run alone. `model`: an `eager_model`, to load it only once."""
    model = eager_model(source, dtype) if model is None else model
    return [model_logits(model, ids) for ids in sequences]


def eager_greedy(
    source: ModelSource,
    sequences: Sequence[Sequence[int]],
    max_new_tokens: int,
    dtype: DType | None = None,
    eos_token_ids: Sequence[int] = (),
    model: Any = None,
) -> list[list[int]]:
    """Greedy continuation of every sequence, each alone and with transformers' cache; ends after an id in
    `eos_token_ids`.
    """
    model = eager_model(source, dtype) if model is None else model
    out = []
    for ids in sequences:
        out.append(_greedy(model, list(ids), max_new_tokens, frozenset(eos_token_ids)))
    return out


def _greedy(model: Any, ids: list[int], max_new_tokens: int, eos: frozenset[int]) -> list[int]:
    # The argument that carries the cache was renamed during transformers 5.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache: Any = None
    step = torch.tensor([ids])
    new: list[int] = []
    with torch.no_grad():
        while len(new) < max_new_tokens:
            out = model(input_ids=step, use_cache=True, **({} if cache is None else {name: cache}))
            cache = out[name] if name in out else out["past_key_values"]
            token = int(out.logits[0, -1].float().argmax())
            new.append(token)
            if token in eos:
                break
            step = torch.tensor([[token]])
    return new
