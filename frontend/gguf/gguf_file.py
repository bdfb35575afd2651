"""A GGUF model as a source: configuration, end-of-text ids, and what decided them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.huggingface import api, one_line, quiet
from inferir.frontend.gguf.gguf_keys import SAMPLING
from inferir.frontend.gguf.gguf_metadata import Identity, identity, open_model
from inferir.frontend.gguf.gguf_rope import EXPLICIT
from inferir.frontend.gguf.gguf_vocabulary import NO_TOKEN
from inferir.frontend.gguf.gguf_weights import described
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError

_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def load_config(path: Path) -> Any:
    """The transformers configuration of the model, by our own reading of its keys.

    Raises `FrontendError` naming a key that is missing, wrong, or could change numbers and is not supported, and
    `WeightError` naming a tensor that does not fit or would not be used. Warns (`WeightWarning`) of keys that nobody
    knows.
    """
    return copy.deepcopy(_config(identity(path)))


@functools.lru_cache(maxsize=2)
def _config(identity: Identity) -> Any:
    path = Path(identity[0][0])
    model = described(path)
    hf_rope: Any = api().rope_init
    hf_rope.setdefault(EXPLICIT, _explicit_frequencies)
    ids = {name: _token_id(path, kind) for kind, name in _IDS.items()}
    wanted = {**model.config, **ids}
    try:
        with quiet():
            config = _build(model.model_type, copy.deepcopy(wanted))
    except Exception as error:  # transformers validates configurations in many ways
        raise FrontendError(
            f"{path.name}: transformers does not accept what the keys say of a {model.architecture!r} model: "
            f"{one_line(error)}"
        ) from error
    for name, value in wanted.items():
        if not _holds(getattr(config, name, None), value):
            raise FrontendError(
                f"{path.name}: transformers makes {name} {getattr(config, name, None)!r}, but the keys say {value!r}; "
                "this version of transformers is not supported for this file"
            )
    return config


def _explicit_frequencies(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Any:
    """A rope type of transformers: frequencies [dim / 2] f32 and the factor of cosine and sine that a configuration
    states one by one.
    """
    import torch

    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    out = torch.tensor(parameters["inv_freq"], dtype=torch.float64).to(device=device, dtype=torch.float32)
    return out, float(parameters["attention_factor"])


def _build(model_type: str, entries: dict[str, Any]) -> Any:
    """A configuration. Some model types accept only the rope types that their own checkpoints have, so `EXPLICIT` is
    set when it stands.
    """
    rope = entries.get("rope_parameters") or {}
    if rope.get("rope_type") != EXPLICIT:
        return api().auto_config.for_model(model_type, **entries)
    plain = {k: rope[k] for k in ("rope_theta", "partial_rotary_factor") if k in rope}
    config = api().auto_config.for_model(model_type, **{**entries, "rope_parameters": plain})
    config.rope_parameters = {**config.rope_parameters, **rope}
    return config


def _holds(have: Any, want: Any) -> bool:
    """Whether a configuration's value is what was asked for; a mapping may have gained entries."""
    if isinstance(want, Mapping):
        return isinstance(have, Mapping) and all(_holds(have.get(k), v) for k, v in want.items())
    return bool(have == want)


def _token_id(path: Path, kind: str) -> int | None:
    """The id of a special token, None if the file does not say. Raises `FrontendError` for one that is no token."""
    model = open_model(path)
    key = f"tokenizer.ggml.{kind}_token_id"
    if key not in model.values:
        return None
    value, tokens = model.values[key], model.values.get("tokenizer.ggml.tokens")
    if type(value) is int and value in NO_TOKEN:
        return None
    size = len(tokens) if isinstance(tokens, list) else described(path).sizes.vocabulary
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise FrontendError(f"{model.file}: key {key!r} is {value!r}; it must be an id from 0 to {size - 1}")
    return value


def end_token_ids(path: Path) -> tuple[int, ...]:
    """Ids that the file declares to end a text, a turn or a message, in that order, each once."""
    found = (_token_id(path, kind) for kind in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(value for value in found if value is not None))


def generation_defaults(path: Path) -> Mapping[str, float | int]:
    """What the file recommends for sampling, under the names of a generation config."""
    out: dict[str, float | int] = {}
    model = open_model(path)
    for key, name in SAMPLING.items():
        if key in model.values:
            value = model.values[key]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise FrontendError(f"{model.file}: key {key!r} is {value!r}; it must be a number")
            # Of a single-precision 0.7, what its author wrote.
            out[name] = float(f"{value:.7g}") if model.types[key] == "f32" else value
    return out


def decisions(path: Path) -> tuple[Decision, ...]:
    """The facts that decide the model's numbers, each with the key that says so."""
    model = described(path)
    keys, sizes, config = model.keys, model.sizes, model.config

    def fact(subject: str, value: Any, *suffixes: str) -> Decision:
        return Decision(subject=subject, value=str(value), source=keys.source(*suffixes))

    out = [
        Decision(
            subject="architecture",
            value=f"{model.architecture}, as transformers' {model.model_type}",
            source=f"{keys.model.file}: general.architecture",
        ),
        fact("context length", sizes.context, "context_length"),
        fact("norm epsilon", f"{sizes.epsilon:g}", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
        fact("head size", sizes.head_dim, "attention.key_length"),
    ]
    if model.rope is not None:
        out.append(Decision(subject="rope", value=model.rope.text, source=model.rope.source))
    if config.get("sliding_window"):
        sliding = config.get("layer_types", []).count("sliding_attention") or sizes.layers
        text = f"{config['sliding_window']} tokens in {sliding} of {sizes.layers} layers"
        out.append(fact("attention window", text, "attention.sliding_window"))
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(name):
            out.append(fact(name.replace("_", " "), f"{config[name]:g}", name))
    head = "token_embd.weight" if config["tie_word_embeddings"] else "output.weight"
    out.append(Decision(subject="output matrix", value=head, source=f"{keys.model.file}: its tensors"))
    return tuple(out)
