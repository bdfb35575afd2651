"""Faults to plant in passes, runtime and code generator, for tests of `inferir verify --bisect`.

`plant(name)` puts a fault in for good, as a process of its own does that is to show it; with the `setattr` of a
`monkeypatch` it stays until the test ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferir.codegen.lower import evaluate
from inferir.codegen.tvm.kernels import attention
from inferir.ir.contract.kv_reads import SlidingWindow
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.rewrite import transform
from inferir.passes.insert.insert_kv import InsertKv
from inferir.passes.merge.merge_qkv import MergeQkv
from inferir.passes.recognise.recognise_rms_norm import RecogniseRmsNorm
from inferir.passes.recognise.recognise_rotary import RecogniseRotary
from inferir.runtime.batch.block_tables import BlockTables
from inferir.runtime.kv.managers import BlockTable, KVManager

Visit = Callable[[Node, tuple[Value, ...]], Value | None]
SetAttr = Callable[[Any, str, Any], None]


def _wrong_eps(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "nn.rms_norm":
        return None
    return Builder(node.loc).op(node.op, *operands, **node.attrs.replace(eps=1e-3))


def _dropped_bias(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "tensor.linear" or len(operands) != 3:
        return None
    return Builder(node.loc).op(node.op, *operands[:2], **node.attrs)


def _swapped_half(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "nn.rotary":
        return None
    x, cos, sin = operands
    b = Builder(node.loc)
    return b.op(node.op, x, cos, b.op("tensor.neg", sin), **node.attrs)


def _window_off_by_one(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "attn.paged" or not isinstance(node.attrs["reads"], SlidingWindow):
        return None
    wider = SlidingWindow(node.attrs["reads"].window + 1)
    return Builder(node.loc).op(node.op, *operands, **node.attrs.replace(reads=wider))


PASSES: dict[str, tuple[type, Visit]] = {
    "wrong eps": (RecogniseRmsNorm, _wrong_eps),
    "dropped bias": (MergeQkv, _dropped_bias),
    "swapped rotary half": (RecogniseRotary, _swapped_half),
    "off-by-one window": (InsertKv, _window_off_by_one),
}
"""Faults of passes: the pass, and what it does to nodes after its own work."""


def _stale_slot(put: SetAttr) -> None:
    """A token that begins a block is written behind the block before."""
    own = BlockTables.next_slots

    def next_slots(self: BlockTables, requests: Any, position: Any, begins: list[int]) -> None:
        own(self, requests, position, [])

    put(BlockTables, "next_slots", next_slots)


def _early_release(put: SetAttr) -> None:
    """Blocks are given back a block before nobody reads them any more."""
    own = KVManager.forget

    def forget(self: KVManager, table: BlockTable, computed: int) -> None:
        own(self, table, computed + self.block_size)

    put(KVManager, "forget", forget)


def _wrong_scale(put: SetAttr) -> None:
    own = attention.update_softmax
    put(attention, "update_softmax", lambda *args, scale, **more: own(*args, scale=scale * 1.25, **more))


def _unrounded_number(put: SetAttr) -> None:
    put(evaluate, "number", lambda node, position, dtype: node.operands[position].node.attrs["value"])


OTHERS: dict[str, Callable[[SetAttr], None]] = {
    "stale KV slot": _stale_slot,
    "block given back too early": _early_release,
    "wrong scale": _wrong_scale,
    "mis-rounded comparison": _unrounded_number,
}


def plant(name: str, put: SetAttr = setattr) -> None:
    """Let the installed Inferir have a fault."""
    if name in OTHERS:
        OTHERS[name](put)
        return
    kind, visit = PASSES[name]
    own = kind.run  # type: ignore[attr-defined]

    def run(self: Any, graph: Graph) -> Graph:
        return transform(own(self, graph), visit)

    put(kind, "run", run)
