"""Trace a model: from a `ModelSource` to the captured graph, its facts, and what it expects of a checkpoint."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from inferir.frontend.capture import hooks
from inferir.frontend.capture.export import Exported, export
from inferir.frontend.capture.import_program import Imported, UnsupportedOperatorError, import_program
from inferir.frontend.capture.rope import check_rope, follow_lengths, longest_sequence, needs_lengths
from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.checkpoint.checkpoint_weights import ExpectedWeights, Weights, WeightSource, resolve
from inferir.frontend.checkpoint.huggingface import quiet, renames, skeleton, state_types, text_config, tied_names
from inferir.frontend.facts import RULES_FILE, ModelFacts, first_id, token_ids
from inferir.frontend.source.model_source import ModelSource
from inferir.ir.errors import WeightError
from inferir.ir.graph.dims import parse_dim
from inferir.ir.graph.dtypes import from_torch, torch_dtype
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.verifier import verify

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TracedModel:
    """A captured graph (ids [T] i32, positions [T] i32) -> logits [T, V] f32, and what belongs to it.

    Where `facts.length_dependent`, the graph has a third input `lengths` [T] i32 (see `rope`).

    constants: values of the graph's `const.*` weights. expected: what the model expects of a checkpoint. rules: the
    operators that were imported by rules of other distributions, and whose dialect has the rule.
    """

    graph: Graph
    facts: ModelFacts
    constants: Mapping[str, torch.Tensor]
    expected: ExpectedWeights
    rules: Mapping[str, str] = field(default_factory=dict)

    def weights(self, source: WeightSource) -> Weights:
        """The graph's weights, read from `source` when they are used. Raises `WeightError` unless the checkpoint
        fits.
        """
        names = resolve(source, self.expected)
        types = {name: value.type for name, value in self.graph.weights().items()}
        return Weights(source, types, names, self.constants)

    def save(self, folder: Path) -> None:
        """Write the capture to an existing folder, so that it can be used again without transformers."""
        from safetensors.torch import save_file

        (folder / "graph.ir").write_text(print_graph(self.graph) + "\n", encoding="utf-8")
        (folder / "facts.json").write_bytes(msgspec.json.encode(self.facts))
        save_file({k: v.contiguous() for k, v in self.constants.items()}, folder / "constants.safetensors")
        (folder / "expected.json").write_bytes(msgspec.json.encode(self.expected))
        (folder / RULES_FILE).write_bytes(msgspec.json.encode(self.rules))

    @staticmethod
    def load(folder: Path) -> TracedModel:
        """Read what `save` wrote. Raises `OSError`, `ParseError` or `msgspec.ValidationError` for damaged files."""
        from safetensors.torch import load_file

        return TracedModel(
            graph=parse_graph((folder / "graph.ir").read_text(encoding="utf-8")),
            facts=msgspec.json.decode((folder / "facts.json").read_bytes(), type=ModelFacts),
            constants=load_file(folder / "constants.safetensors"),
            expected=msgspec.json.decode((folder / "expected.json").read_bytes(), type=ExpectedWeights),
            rules=msgspec.json.decode((folder / RULES_FILE).read_bytes(), type=dict[str, str]),
        )


def trace(source: ModelSource) -> TracedModel:
    """Trace the model of `source` in the type it is served in. Weights are not read, except to compare tied ones.

    Raises `FrontendError` and its children; nothing is kept of a failed trace.
    """
    hooks.register()
    check_rope(source.config)
    dtype = torch_dtype(source.dtype)
    config = _untied_if_different(source)
    model = skeleton(config, dtype, trust_remote_code=source.trust_remote_code)
    lengths = needs_lengths(config)
    if lengths:
        follow_lengths(model)
    expected = expected_weights(model)
    imported = _capture(model, expected.aliases, lengths)
    verify(imported.graph)
    facts = _facts(source, config, imported, expected)
    log.info("%s: captured %d ops of %s", source.name, len(imported.graph.nodes), facts.model_type)
    return TracedModel(imported.graph, facts, imported.constants, expected, imported.added)


def expected_weights(model: Any) -> ExpectedWeights:
    """What a model of transformers expects of a checkpoint."""
    return ExpectedWeights(
        types={name: (tuple(t.shape), from_torch(t.dtype)) for name, t in state_types(model).items()},
        aliases=tied_names(model),
        base_prefix=str(getattr(model, "base_model_prefix", "")),
        ignored=tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()),
        renames=renames(model),
    )


def _capture(model: Any, aliases: Mapping[str, str], with_lengths: bool) -> Imported:
    """Export and import; a program with operators that have no rule is decomposed into simpler ones once."""
    exported = export(model, with_lengths)
    try:
        return import_program(exported, aliases)
    except UnsupportedOperatorError:
        with quiet(), torch.no_grad():
            simpler = exported.program.run_decompositions({})
        return import_program(Exported(simpler, exported.symbol), aliases)


def _untied_if_different(source: ModelSource) -> Any:
    """The config, with tying switched off where the checkpoint holds both tied tensors and they differ (as
    transformers does).
    """
    config = copy.deepcopy(source.config)
    part = text_config(config)
    if source.kind != "folder" or not getattr(part, "tie_word_embeddings", False):
        return config
    separate = source.separate_head
    if separate is not None:
        head, table = separate
        message = f"the config ties {head!r} to {table!r}, but the checkpoint holds different values; they are not tied"
        warnings.warn(message, WeightWarning, stacklevel=3)
        config.tie_word_embeddings = part.tie_word_embeddings = False
    return config


def _facts(source: ModelSource, config: Any, imported: Imported, expected: ExpectedWeights) -> ModelFacts:
    part = text_config(config)
    hidden = getattr(part, "hidden_size", 0) or getattr(part, "n_embd", 0)
    logits = imported.graph.outputs[0].type
    limit, stated = position_limit(imported.graph), longest_sequence(config)
    described = part.to_dict()
    generation = source.generation_config
    return ModelFacts(
        name=source.name,
        architectures=tuple(getattr(config, "architectures", None) or ()),
        model_type=str(getattr(part, "model_type", "")),
        dtype=source.dtype,
        vocab_size=int(parse_dim(str(logits.shape[-1]))),
        hidden_size=int(hidden),
        layers=imported.attention,
        max_position_embeddings=min(stated or limit, limit or stated),
        position_limit=limit,
        length_dependent="lengths" in imported.graph.input_names,
        eos_token_ids=token_ids(
            generation.get("eos_token_id"), described.get("eos_token_id"), getattr(config, "eos_token_id", None)
        ),
        bos_token_id=first_id(generation.get("bos_token_id"), described.get("bos_token_id")),
        pad_token_id=first_id(generation.get("pad_token_id"), described.get("pad_token_id")),
        parameters=sum(math.prod(shape) for shape, _ in expected.types.values()),
        tie_word_embeddings=bool(getattr(part, "tie_word_embeddings", False)),
    )


def position_limit(graph: Graph) -> int:
    """The number of positions that all tables indexed by `positions` can serve; 0 if there is no such table."""
    positions = graph.inputs[graph.input_names.index("positions")]
    limits = []
    for node in graph.nodes:
        if opdef(node.op).lookup:
            table, index = node.operands
            offset = _offset(index, positions)
            if offset is not None and isinstance(table.type.shape[0], int):
                limits.append(table.type.shape[0] - offset)
    if limits and min(limits) <= 0:
        raise WeightError("the model's position table is empty")
    return min(limits, default=0)


def _offset(index: Value, positions: Value) -> int | None:
    """c if `index` is positions + c, else None."""
    if index is positions:
        return 0
    if opdef(index.op).quiet:
        return _offset(index.node.operands[0], positions)
    if index.op == "tensor.add":
        for value, other in (index.node.operands, reversed(index.node.operands)):
            if other.op == "core.scalar":
                inner = _offset(value, positions)
                return None if inner is None else inner + int(other.node.attrs["value"])
    return None
