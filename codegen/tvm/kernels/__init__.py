"""Kernels of the anchors."""
