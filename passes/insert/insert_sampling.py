"""insert-sampling: the step draws its own tokens."""

from __future__ import annotations

from dataclasses import dataclass

from inferir.ir.errors import PassError
from inferir.ir.graph.graph import Builder, Graph, Provenance
from inferir.ir.ops.sample import operand_types
from inferir.passes.context import ROWS_GATHERED, SAMPLED, Pass


@dataclass(frozen=True)
class InsertSampling(Pass):
    """Adds the operands of `sample.draw` (`ir.ops.sample.operand_types`) as inputs: parameters per logit row [R], a
    bitmask of allowed tokens, and a list of edits [E]; and the output `tokens` i32 [R].

    valid: how many logits may be drawn (a padded vocabulary has more); default all.
    """

    valid: int | None = None

    name = "insert-sampling"
    why = "no trip to the host between logits and token"
    requires = frozenset({ROWS_GATHERED})
    ensures = frozenset({SAMPLED})
    idempotent = False

    def run(self, graph: Graph) -> Graph:
        logits = graph.output("logits")
        vocabulary = int(logits.type.shape[1])
        valid = vocabulary if self.valid is None else self.valid
        if not 0 < valid <= vocabulary:
            raise PassError(f"{self.name}: {valid} tokens may be drawn, but there are {vocabulary} logits")
        b = Builder(Provenance("sampler", "draw"))
        inputs = [b.input(name, type_) for name, type_ in operand_types(logits.type).items()]
        tokens = b.op("sample.draw", logits, *inputs, valid=valid)
        return Graph((*graph.inputs, *inputs), (*graph.outputs, tokens), (*graph.output_names, "tokens"), graph.name)
