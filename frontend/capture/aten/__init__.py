"""Import rules: one small function per ATen operator (or family), called with the importer and the operator's
arguments.

The table holds what the decoders in `tests/frontend` need; an operator that is not here is refused by name. Rules may
use the traced result type (`imp.val`), which already includes PyTorch's promotion and shape rules.
"""

from inferir.frontend.capture.aten import (
    attention_rules,
    elementwise_rules,
    product_rules,
    reduce_rules,
    shape_rules,
)
from inferir.frontend.capture.importer import RULES

__all__ = ["RULES", "attention_rules", "elementwise_rules", "product_rules", "reduce_rules", "shape_rules"]
