"""How the tensors of a GGUF model become those of a transformers model: names, shapes and rearrangements.

A `Rule` stands for one tensor of the file. Shapes are written with letters, slowest axis first:
h hidden, v vocabulary, c context, f feed-forward, g twice that, q query heads, k key heads, p all three together,
d one head.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferir.frontend.gguf.gguf_format import TensorInfo
from inferir.frontend.gguf.gguf_metadata import GgufModel
from inferir.ir.errors import WeightError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Rule:
    """name: in the file, `{i}` for the number of a layer. target: the parameter it becomes. shape: in letters. change:
    what is done to the values (see `changed`). group: tensors that may be absent; if any of a group is there, those
    that are not are zero. "" for a tensor that must be there, "always" for one that is zero where it is absent.
    """

    name: str
    target: str
    shape: str
    change: str = ""
    group: str = ""


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
        """The letters of `Rule`."""
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
class Planned:
    """One parameter: the tensor it comes from (None: zeros), its shape in the file and what is done to its values."""

    info: TensorInfo | None
    shape: tuple[int, ...]
    change: str
    heads: int


def linear(name: str, target: str, shape: str, bias: str = "", change: str = "") -> tuple[Rule, ...]:
    """A weight, and its bias if `bias` says to which group it belongs ("!" for one that must be there)."""
    weight = Rule(f"{name}.weight", f"{target}.weight", shape, change)
    if not bias:
        return (weight,)
    group = "" if bias == "!" else bias
    of_bias = "" if change == "transpose" else change
    return (weight, Rule(f"{name}.bias", f"{target}.bias", shape.split()[0], of_bias, group))


def changed(values: np.ndarray[Any, Any], planned: Planned) -> np.ndarray[Any, Any]:
    """Values under the rules of transformers.

    interleaved: rows of each head are stored in pairs that rotate together, and wanted as two halves. minus one: the
    stored weight of a norm is one more. transpose: stored as [out, in], wanted as [in, out].
    """
    if planned.change == "interleaved":
        rows = values.shape[0]
        pairs = values.reshape(planned.heads, rows // planned.heads // 2, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)
    if planned.change == "minus one":
        return values - 1
    return values.T if planned.change == "transpose" else values


def active_groups(model: GgufModel, rules: Iterable[Rule], layers: int) -> frozenset[str]:
    """Groups of optional tensors of which the model has at least one."""
    out = {"always"}
    for rule in rules:
        if rule.group and any(rule.name.format(i=i) in model.tensors for i in range(layers)):
            out.add(rule.group)
    return frozenset(out)


def plan(
    model: GgufModel, rules: Iterable[Rule], sizes: Sizes, groups: Set[str], used: Iterable[str]
) -> dict[str, Planned]:
    """Parameter name -> what it is made of, for all layers.

    groups: see `active_groups`. used: tensors that are read elsewhere. Raises `WeightError` naming a tensor
    that is missing (of a group only biases may be), has another shape than the keys say, or belongs to nothing.
    """
    letters, heads = sizes.letters(), {"q": sizes.heads, "k": sizes.kv_heads}
    out: dict[str, Planned] = {}
    wanted: set[str] = set(used)
    for rule in rules:
        if rule.group and rule.group not in groups:
            continue
        shape = tuple(letters[letter] for letter in rule.shape.split())
        for i in range(sizes.layers if "{i}" in rule.name else 1):
            name = rule.name.format(i=i)
            wanted.add(name)
            info = model.tensors.get(name)
            if info is None and (not rule.group or rule.name.endswith(".weight")):
                held = f"{len(model.tensors)} tensors"
                raise WeightError(f"{model.file}: tensor {name!r} is missing (the file holds {held})")
            if info is not None and info.shape != shape:
                raise WeightError(
                    f"{info.file.name}: tensor {name!r} has shape {list(info.shape)}, but the keys say {list(shape)}"
                )
            out[rule.target.format(i=i)] = Planned(info, shape, rule.change, heads.get(rule.shape.split()[0], 1))
    _check_unused(model, wanted, sizes.layers)
    return out


def _check_unused(model: GgufModel, wanted: set[str], layers: int) -> None:
    unused = [name for name in model.tensors if name not in wanted]
    if not unused:
        return
    name = unused[0]
    more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) > 1 and parts[1].isdigit() and int(parts[1]) >= layers:
        why = f"the keys say {layers} layers"
    else:
        why = "this architecture has no such tensor, and leaving it out could change the numbers"
    raise WeightError(f"{model.tensors[name].file.name}: tensor {name!r}{more} would not be used: {why}")
