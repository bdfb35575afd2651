"""Import rules: one small function per ATen operator (or family), called with the importer and the operator's
arguments.

The table holds what the decoders in `tests/frontend` need; an operator that is not here is refused by name. Rules may
use the traced result type (`imp.val`), which already includes PyTorch's promotion and shape rules.
"""

from inferir.frontend.capture.aten import attention_rules as attention
from inferir.frontend.capture.aten import elementwise_rules as elementwise
from inferir.frontend.capture.aten import product_rules as product
from inferir.frontend.capture.aten import reduce_rules as reduce
from inferir.frontend.capture.aten import shape_rules as shape
from inferir.frontend.capture.import_rules import RULES

__all__ = ["RULES", "attention", "elementwise", "product", "reduce", "shape"]
