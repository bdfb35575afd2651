"""LLVM helper functions that kernels call."""
