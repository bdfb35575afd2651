"""The dialects of this system. Importing this module defines their ops."""

from inferir.ir.graph.registry import DIALECTS
from inferir.ir.ops import (
    attn,
    core,
    kernel,
    kv,
    layout,
    nn,
    sample,
    tensor_elementwise,
    tensor_products,
    tensor_reductions,
    tensor_shapes,
)

DIALECTS.add("core", core)
DIALECTS.add("tensor", (tensor_elementwise, tensor_products, tensor_reductions, tensor_shapes))
DIALECTS.add("nn", nn)
DIALECTS.add("attn", attn)
DIALECTS.add("kv", kv)
DIALECTS.add("sample", sample)
DIALECTS.add("layout", layout)
DIALECTS.add("kernel", kernel)
