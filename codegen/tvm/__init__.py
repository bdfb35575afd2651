"""Kernels for CPUs: TVMScript text, built with TVM and LLVM into shared objects with plain C symbols."""
