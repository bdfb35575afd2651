"""What is stated of one architecture of GGUF files, and what its own part of a configuration is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferir.frontend.gguf.gguf_keys import Keys
from inferir.frontend.gguf.gguf_rope import Rope
from inferir.frontend.gguf.gguf_tensors import Rule


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model, from its keys and, for the vocabulary, its embedding table. turned: rotated elements of a head
    (0: it has no rotary embedding). epsilon: of its norms.
    """

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    turned: int
    context: int
    vocabulary: int
    epsilon: float

    def letters(self) -> dict[str, int]:
        """The letters of `gguf_tensors.Rule`."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "h": self.hidden,
            "v": self.vocabulary,
            "c": self.context,
            "f": self.feed_forward,
            "g": 2 * self.feed_forward,
            "q": query,
            "k": key,
            "p": query + 2 * key,
            "d": self.head_dim,
        }


@dataclass(frozen=True)
class Context:
    """What an architecture's own part of the configuration is made from."""

    keys: Keys
    sizes: Sizes
    rope: Rope | None
    groups: frozenset[str]


@dataclass(frozen=True)
class Family:
    """One architecture.

    model_type: transformers' name. rules: its tensors. epsilon: key of the norms' epsilon. entries: of its
    configuration, by the field of `Sizes` that decides each; fixed: those that are always the same; flags: those that
    say whether the model has any tensor of a group; settings: the rest of them. turned: "all" elements of a head are
    rotated, "part" of them may be, or "none". factors: factor tensors it may have. free_head: whether a head may have
    another size than hidden / heads. head: an output matrix is "optional", "required" or "never" there.
    """

    model_type: str
    rules: tuple[Rule, ...]
    epsilon: str
    entries: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[Context], Mapping[str, Any]] = lambda _: {}
    turned: str = "all"
    factors: tuple[str, ...] = ()
    free_head: bool = False
    head: str = "optional"

    def config(self, at: Context) -> dict[str, Any]:
        """Entries of a model's configuration."""
        return {
            **{entry: getattr(at.sizes, size) for entry, size in self.entries.items()},
            **({} if at.rope is None else {"rope_parameters": dict(at.rope.parameters)}),
            **{entry: group in at.groups for entry, group in self.flags.items()},
            **self.fixed,
            **self.settings(at),
        }
