"""insert-argmax: rows that only want their most likely token get it without full logits."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.ir.graph.dims import G, R, with_symbol
from inferir.ir.graph.graph import Builder, Graph, Node, Provenance, Value, make_node, topological
from inferir.ir.graph.registry import opdef
from inferir.ir.weight_format import FORMATS
from inferir.passes.context import PACKED, SAMPLED, Pass, PassContext, describe
from inferir.passes.insert.step_input import step_input

ROW_MULTIPLE, LONGEST_ROW = 16, 32768
"""Of how many elements rows of the last product must be a multiple, since the pre-filter takes as many at once, and how
many they may have, so that sums of products of integers fit 32 bits.
"""


@dataclass(frozen=True)
class InsertArgmax(Pass):
    """Adds the input `argmax_rows` [G] of token rows and the output `argmax` i32 [G], their most likely tokens, beside
    `rows` and what is drawn for those.

    The row-by-row ops between the gather of logit rows and the last product are repeated for these rows, and
    `sample.argmax` takes the place of product and draw. It compares float32 sums, where the captured model may round
    logits first. Models whose logits are more than a product, or whose last layer runs on gathered rows, stay as they
    are, and so do all where the target lacks what kernels of int8 need. features: of the target, in LLVM's spelling;
    valid: how many logits may be drawn, default all.
    """

    features: frozenset[str]
    valid: int | None = None
    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "insert-argmax"
    why = "a byte per weight tells most tokens apart; the last matrix is read where it does not"
    requires = frozenset({PACKED, SAMPLED})
    idempotent = False

    def run(self, graph: Graph) -> Graph:
        product = graph.output("logits").node
        while product.op == "tensor.cast":
            product = product.operands[0].node
        prefilter = FORMATS.get("int8_rows")
        missing = sorted(prefilter.features - self.features)
        tail = f"the target has no {missing[0]}" if missing else self._tail(product)
        if isinstance(tail, str):
            self.context.refuse(self.name, describe(product), tail)
            return graph
        rows = step_input("argmax_rows")
        env: dict[Value, Value] = {}
        for node in tail:
            operands = tuple(env.get(v, v) for v in node.operands)
            if node.op == "tensor.gather_rows":
                operands = (node.operands[0], rows)
            attrs = {k: with_symbol(a, R, G) for k, a in node.attrs.items()}
            env[node.result] = make_node(node.op, operands, attrs, node.loc).result
        x, packed = product.operands
        n = product.attrs["n"]
        valid = n if self.valid is None else self.valid
        (weight,) = packed.node.operands
        b = Builder(Provenance.join((product.loc, Provenance("sampler", "argmax"))))
        quantized = prefilter.transform(b, weight, valid=valid)
        tokens = b.op("sample.argmax", env[x], packed, *quantized, n=n, valid=valid)
        return Graph((*graph.inputs, rows), (*graph.outputs, tokens), (*graph.output_names, "argmax"), graph.name)

    @staticmethod
    def _tail(product: Node) -> list[Node] | str:
        """The nodes from the gather of logit rows to the operand of `product`, operands first; or why not."""
        if product.op != "tensor.linear_packed":
            return "logits are not the result of a product with weights"
        if product.attrs["format"] != "panels":  # what int8 loses is known of the weight as it is
            return f"the last matrix is stored as {product.attrs['format']}"
        width = product.operands[0].type.shape[-1]
        if not isinstance(width, int) or width % ROW_MULTIPLE or width > LONGEST_ROW:
            return f"rows of {width} elements, not a multiple of {ROW_MULTIPLE} up to {LONGEST_ROW}"
        rows = [n for n in topological((), product.operands[:1]) if n.types[0].shape[:1] == (R,)]
        tail = [n for n in rows if n.op != "core.input"]
        for node in tail:
            if opdef(node.op).contraction:
                return "the layer before it runs on gathered rows"
            inputs = [v for v in node.operands if v.node in rows and v.node not in tail]
            if len(node.results) != 1 or (inputs and node.op != "tensor.gather_rows"):
                return f"{node.op} of logit rows cannot be repeated"
        return tail
