"""A GGUF model as entries of a transformers configuration and a plan of its parameters.

Every key and every tensor is used, known to be irrelevant, or an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferir.frontend.gguf.gguf_families import FAMILIES, Context, Family
from inferir.frontend.gguf.gguf_keys import REQUIRED, Keys
from inferir.frontend.gguf.gguf_metadata import GgufModel
from inferir.frontend.gguf.gguf_rope import FREQS, Load, Rope, read_rope
from inferir.frontend.gguf.gguf_tensors import Planned, Rule, Sizes, active_groups, plan
from inferir.ir.errors import FrontendError, WeightError

MAX_LAYERS, MAX_SIZE = 10_000, 2**24


@dataclass(frozen=True)
class Described:
    """A model that was read: entries of its transformers configuration, and what every parameter is made of."""

    architecture: str
    model_type: str
    config: Mapping[str, Any]
    parameters: Mapping[str, Planned]
    sizes: Sizes
    rope: Rope | None
    keys: Keys


def describe(model: GgufModel, load: Load) -> Described:
    """Read a model's keys and plan its parameters; every key and every tensor is accounted for.

    load: (tensor name, count) -> its values, for small tensors of factors. Raises `FrontendError` naming the key,
    `WeightError` naming the tensor.
    """
    keys = Keys(model)
    family = FAMILIES.get(keys.architecture)
    if family is None:
        raise FrontendError(
            f"{model.file}: architecture {keys.architecture!r} is not supported as GGUF; supported are "
            f"{', '.join(FAMILIES)}; other models are read from a folder of safetensors"
        )
    sizes = _sizes(keys, family)
    rules = _with_head(model, family)
    factors = [name for name in family.factors if name in model.tensors]
    if keys.architecture == "llama" and keys.text("rope.scaling.type", "linear") != "longrope":
        factors = [name for name in factors if name == FREQS]  # the others would not be read, and are named
    rope = None
    if family.turned != "none":
        share = _share(sizes.turned, sizes.head_dim) if family.turned == "part" else None
        rope = read_rope(keys, sizes.turned, share, sizes.context, factors, load)
    groups = active_groups(model, rules, sizes.layers)
    parameters = plan(model, rules, sizes, groups, rope.tensors if rope else ())
    config = family.config(Context(keys, sizes, rope, groups))
    config |= {"vocab_size": sizes.vocabulary, "tie_word_embeddings": "lm_head.weight" not in parameters}
    keys.account()
    return Described(keys.architecture, family.model_type, config, parameters, sizes, rope, keys)


def _with_head(model: GgufModel, family: Family) -> tuple[Rule, ...]:
    has = "output.weight" in model.tensors
    if family.head == "required" or (family.head == "optional" and has):
        return (*family.rules, Rule("output.weight", "lm_head.weight", "v h"))
    return family.rules


def _share(turned: int, head_dim: int) -> float:
    """turned / head_dim, such that head_dim times it, rounded down, is `turned`."""
    share = turned / head_dim
    return share if int(head_dim * share) == turned else math.nextafter(share, 1.0)


def _sizes(keys: Keys, family: Family) -> Sizes:
    layers = keys.integer("block_count", high=MAX_LAYERS)
    hidden = keys.integer("embedding_length", high=MAX_SIZE)
    heads = keys.per_layer("attention.head_count", layers)
    if heads > hidden:
        raise keys.fail(keys.full("attention.head_count"), f"is {heads}, more than the {hidden} elements of a token")
    kv_heads = keys.per_layer("attention.head_count_kv", layers, heads)
    if heads % kv_heads:
        raise keys.fail(keys.full("attention.head_count_kv"), f"is {kv_heads}, which does not divide {heads} heads")
    head_dim = keys.integer("attention.key_length", hidden // heads, high=MAX_SIZE)
    if not family.free_head and (head_dim != hidden // heads or hidden % heads):
        why = f"gives heads of {head_dim}; those of {keys.architecture!r} have {hidden}/{heads} elements"
        raise keys.fail(keys.full("attention.key_length"), why)
    keys.same("attention.value_length", head_dim, "the length of a key")
    return Sizes(
        hidden=hidden,
        layers=layers,
        feed_forward=keys.per_layer("feed_forward_length", layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        turned=_turned(keys, family, head_dim),
        context=keys.integer("context_length"),
        vocabulary=_vocabulary(keys),
        epsilon=keys.number(family.epsilon, REQUIRED),
    )


def _turned(keys: Keys, family: Family, head_dim: int) -> int:
    key = keys.full("rope.dimension_count")
    if family.turned == "none":
        return 0
    turned = keys.integer("rope.dimension_count", head_dim, high=head_dim)
    if turned % 2:
        raise keys.fail(key, f"is {turned}; an even number of elements is rotated")
    if family.turned == "all" and turned != head_dim:
        raise keys.fail(key, f"is {turned}, but {keys.architecture!r} rotates all {head_dim} elements of a head")
    return turned


def _vocabulary(keys: Keys) -> int:
    """Rows of the embedding table, which must be as many as there are tokens."""
    table = keys.model.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise WeightError(f"{keys.model.file}: tensor 'token_embd.weight' is missing or not a table")
    rows = table.shape[0]
    tokens = keys.model.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != rows:
        raise WeightError(
            f"{table.file.name}: tensor 'token_embd.weight' has {rows} rows, but 'tokenizer.ggml.tokens' lists "
            f"{len(tokens)} tokens"
        )
    keys.integer("vocab_size", rows)  # what it once was: the table's rows decide
    return rows
