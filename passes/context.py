"""What a pass is, and the options that passes are built from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.symbols import Limits
from inferir.ir.errors import PassError
from inferir.ir.graph.dims import T
from inferir.ir.graph.graph import Graph, Node

RAGGED = "ragged"
POSITIONS_TABULATED = "positions-tabulated"
PAGED = "paged"
ROWS_GATHERED = "rows-gathered"
SAMPLED = "sampled"
PACKED = "packed"
WEIGHTS_FOLDED = "weights-folded"
REGIONS = "regions"


class Pass(Protocol):
    """A rewrite of a whole graph. What options an implementation has are fields of a frozen dataclass.

    `requires` and `ensures` name properties (`passes.properties`), by default none; the driver checks that what a pass
    requires was ensured before and that what it ensures holds afterwards. A pass that would change its own result has
    `idempotent = False`.
    """

    name: ClassVar[str]
    why: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    ensures: ClassVar[frozenset[str]] = frozenset()
    idempotent: ClassVar[bool] = True

    def run(self, graph: Graph) -> Graph:
        """The rewritten graph. Raises `PassError` naming pass, op and module if the graph cannot be handled."""
        ...


SMALL = Limits(max_model_len=2048, max_tokens=2048, max_seqs=64, max_rows=64, block_size=16)


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """Everything the pipeline depends on besides the graph.

    opt_level: 0 keeps every op a kernel of its own, 1 recognises and fuses, 2 also elides roundings inside kernels, 3
      also pushes the gather of logit rows through the whole last layer.
    enabled: names of passes of other distributions that run at any level.
    disabled: names of passes to leave out; leaving out one that a later pass requires is an error.
    limits: of steps and sequences; positions are 0 … max_model_len - 1.
    vocab_size: tokens that may be drawn (default: all logits).
    features: what the target's kernels may use, in LLVM's spelling.
    """

    opt_level: int = 2
    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    limits: Limits = SMALL
    vocab_size: int | None = None
    features: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.opt_level not in (0, 1, 2, 3):
            raise PassError(f"opt_level is {self.opt_level}, not 0, 1, 2 or 3")


@dataclass(frozen=True)
class Refusal:
    """A rewrite that was considered and not done. `subject` names the nodes, by module and op."""

    pass_name: str
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.subject}: {self.reason}"


@dataclass
class PassContext:
    """What passes find out besides the new graph: refusals, the weight transforms that are computed when the artifact
    is written, the groups of layers that share block tables, and the names of inputs that are resident buffers: the
    host changes them now and then, not in every step.
    """

    refusals: list[Refusal] = field(default_factory=list)
    transforms: dict[str, Graph] = field(default_factory=dict)
    kv: tuple[KVCacheGroup, ...] = ()
    residents: set[str] = field(default_factory=set)

    def refuse(self, pass_name: str, subject: str, reason: str) -> None:
        refusal = Refusal(pass_name, subject, reason)
        if refusal not in self.refusals:
            self.refusals.append(refusal)


def describe(node: Node) -> str:
    """A node for people: module path and op."""
    return f"{node.loc.module or '?'} {node.op}"


def refuse(pass_name: str, node: Node, reason: str) -> PassError:
    return PassError(f"{pass_name}: {node.op} in {node.loc.module or 'the graph'}: {reason}")


def has_tokens(shape: tuple[object, ...]) -> bool:
    """True if any dimension depends on T."""
    return any(not isinstance(d, int) and T in d.free_symbols for d in shape)  # type: ignore[attr-defined]
