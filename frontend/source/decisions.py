"""What in a model's files decides its numbers, apart from weights and tokenizer, and where each of it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferir.frontend.checkpoint.checkpoint_weights import FolderWeights
from inferir.frontend.checkpoint.config_check import parts
from inferir.frontend.checkpoint.model_name import readable
from inferir.frontend.source.model_source import ModelSource, stated_dtype
from inferir.ir.contract.manifest import Decision

_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rope_local_base_freq")
_SAMPLING = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def decisions(source: ModelSource, asked_dtype: str) -> tuple[Decision, ...]:
    """Element type, weight files, rotary positions and generation defaults of `source`.

    asked_dtype: the option that the user gave; "auto" if the model decides. Reads no tensor.
    """
    out = [_dtype(source, asked_dtype)]
    if source.kind == "folder":
        if isinstance(source.weights, FolderWeights):
            files = source.weights.files
            out.append(Decision(subject="weights", value=files.described, source=files.index or files.files[0].name))
        out += rope_decisions(source.stated_config)
        out += _generation(source.generation_config, "generation_config.json")
    else:
        from inferir.frontend.gguf import gguf_file

        out += gguf_file.decisions(source.path)
        out += _generation(source.generation_config, f"{readable(source.path.name)}: general.sampling.*")
    return tuple(out)


def _dtype(source: ModelSource, asked: str) -> Decision:
    served = source.dtype.value
    if asked != "auto":
        return Decision(subject="dtype", value=served, source="--dtype")
    key, stored = stated_dtype(source.stated_config)
    if key:
        return Decision(subject="dtype", value=f"{served} for {stored}", source=f"config.json: {key}")
    where = "default for GGUF files" if source.kind == "gguf" else "the tensors: config.json does not say"
    return Decision(subject="dtype", value=served, source=where)


def rope_decisions(config: Mapping[str, Any]) -> list[Decision]:
    """Every key of config.json that decides rotary positions; without one, the model type does."""
    out = []
    for where, part in parts(config):
        for key in _ROPE:
            if part.get(key) is not None:
                value = json.dumps(part[key], ensure_ascii=False)
                out.append(Decision(subject="rope", value=value, source=f"config.json: {where}{key}"))
    if not out:
        kind = config.get("model_type")
        out.append(Decision(subject="rope", value="not stated", source=f"default of the model type {kind}"))
    return out


def _generation(generation: Mapping[str, Any], where: str) -> list[Decision]:
    stated = [f"{key} {json.dumps(generation[key])}" for key in _SAMPLING if generation.get(key) is not None]
    if not stated:
        return []
    return [Decision(subject="generation defaults", value=", ".join(stated), source=where)]
