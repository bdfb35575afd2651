"""plan: call order, arguments and buffers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_limits import limits

from inferir.ir.contract.manifest import ALIGNMENT, ArenaArg, InputArg, KVArg, OutputArg, ResidentArg, WeightArg
from inferir.ir.errors import PassError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.types import TensorType
from inferir.passes.context import PassOptions
from inferir.passes.manager import run_pipeline
from inferir.passes.step_plan import StepPlan, plan

B = Builder()


def region(name: str, operands: list[Value], outs: int, width: int = 4) -> tuple[Value, ...]:
    """A row-wise region that adds up its operands' first columns and gives `outs` results."""
    inputs = [B.input(f"x{i}", v.type) for i, v in enumerate(operands)]
    total = None
    for v in inputs:
        column = B.op("tensor.slice", v, dim=1, start=0, stop=1)
        total = column if total is None else B.op("tensor.add", total, column)
    assert total is not None
    results = tuple(B.op("tensor.expand", B.op("tensor.exp", total), shape=(T, width + i)) for i in range(outs))
    body = Graph(tuple(inputs), results)
    return B.node("kernel.region", operands, {"anchor": "rowwise", "body": body, "name": name}).results


def check(step: StepPlan) -> None:
    """No two buffers that are live at the same time share a byte, and all are aligned and inside the arena."""
    for i, a in enumerate(step.buffers):
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.nbytes <= step.arena_bytes
        assert a.first <= a.last
        for b in step.buffers[i + 1 :]:
            apart = a.last < b.first or b.last < a.first
            assert apart or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_an_input_may_be_a_resident_buffer() -> None:
    x, table = B.input("x", TensorType((T, 4), DType.F32)), B.input("table", TensorType((T, 4), DType.F32))
    step = plan(Graph((x, table), region("a", [x, table], 1), ("logits",)), {"T": 10}, residents={"table"})
    assert step.ops[0].args == (InputArg("x"), ResidentArg("table"), OutputArg("logits"))


def test_arguments_of_a_chain() -> None:
    x = B.input("x", TensorType((T, 4), DType.F32))
    w = B.weight("w", TensorType((1, 4), DType.F32))
    (a,) = region("a", [x, w], 1)
    (b,) = region("b", [a, x], 1)
    (c,) = region("c", [b, a], 1)
    step = plan(Graph((x,), (c,), ("logits",)), {"T": 10})
    first, second = 0, 192  # 160 bytes, aligned
    assert [op.args for op in step.ops] == [
        (InputArg("x"), WeightArg("w"), ArenaArg(first)),
        (ArenaArg(first), InputArg("x"), ArenaArg(second)),
        (ArenaArg(second), ArenaArg(first), OutputArg("logits")),
    ]
    assert step.arena_bytes == 2 * 192 - 32 + 32
    assert [(o.name, o.nbytes) for o in step.outputs] == [("logits", 160)]
    check(step)


def test_dead_buffers_are_reused() -> None:
    x = value = B.input("x", TensorType((T, 4), DType.F32))
    for i in range(9):
        (value,) = region(f"r{i}", [value], 1)
    step = plan(Graph((x,), (value,)), {"T": 16})
    assert step.arena_bytes == 2 * 256
    check(step)


@settings(max_examples=40)
@given(st.data())
def test_live_buffers_never_overlap(data: st.DataObject) -> None:
    values: list[Value] = [B.input("x", TensorType((T, 4), DType.F32))]
    count = data.draw(st.integers(1, 12))
    for i in range(count):
        operands = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique_by=id))
        values += region(f"r{i}", operands, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40)))
    outputs = data.draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique_by=id))
    step = plan(Graph((values[0],), tuple(outputs)), {"T": data.draw(st.integers(1, 50))})
    check(step)
    written: set[object] = {InputArg("x")}
    for op in step.ops:
        operands = op.args[: len(op.region.operands)]
        assert written.issuperset(operands), "an operand is written before it is read"
        written.update(op.args[len(op.region.operands) :])


def test_a_whole_model(tiny) -> None:
    options = PassOptions(limits=limits(max_model_len=16, block_size=4, max_tokens=8, max_seqs=2))
    step = run_pipeline(tiny(layers=4).graph, None, options).plan
    check(step)
    assert {o.name: o.nbytes for o in step.outputs} == {"logits": 2 * 40 * 4, "tokens": 2 * 4}
    writes = [op for op in step.ops if op.region.attrs["name"] == "rotary_kv_write"]
    assert [[a for a in op.args if isinstance(a, KVArg)] for op in writes] == [
        [KVArg(i % 2, i, "k"), KVArg(i % 2, i, "v")] for i in range(4)
    ]
    assert all(len(op.args) == len(op.region.operands) + 1 for op in writes), "caches are written in place"
    reads = [op for op in step.ops if op.region.attrs["anchor"] == "attention"]
    assert [op.args[1:3] for op in reads] == [(KVArg(i % 2, i, "k"), KVArg(i % 2, i, "v")) for i in range(4)]
    draw = step.ops[-1]
    assert draw.args[0] == OutputArg("logits")
    assert draw.args[-1] == OutputArg("tokens")


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(PassError, match=r"plan: tensor.exp in .* is not in a kernel"):
        plan(parse_graph('graph @g(%x: f32[T]) -> (%1 as "y") {\n %1 = tensor.exp(%x) : f32[T] @ "m:e"\n}'), {"T": 1})
    x = B.input("x", TensorType((T, 4), DType.F32))
    (a,) = region("a", [x], 1)
    with pytest.raises(PassError, match="plan: no bound for T"):
        plan(Graph((x,), (a,)), {"S": 1})
    with pytest.raises(PassError, match="plan: output 'out1' is an operand"):
        plan(Graph((x,), (a, a)), {"T": 1})
    with pytest.raises(PassError, match="plan: output 'out0' is an operand"):
        plan(Graph((x,), (x,)), {"T": 1})
