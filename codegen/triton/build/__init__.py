"""Triton text to device code, and to an interpreter."""
