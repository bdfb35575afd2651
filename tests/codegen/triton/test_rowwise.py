"""Generated row kernels, run in the interpreter, against the reference interpreter on the region's body."""

from row_suite import test_a_body_computes_what_the_reference_does, test_every_elementwise_op_is_in_a_body

__all__ = ["test_a_body_computes_what_the_reference_does", "test_every_elementwise_op_is_in_a_body"]
