"""Passes that lay weights out for kernels."""
