"""The dialects of this system. Importing this module defines their ops."""

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

__all__ = [
    "attn",
    "core",
    "kernel",
    "kv",
    "layout",
    "nn",
    "sample",
    "tensor_elementwise",
    "tensor_products",
    "tensor_reductions",
    "tensor_shapes",
]
