"""Row-wise regions as Triton kernels for NVIDIA GPUs, compiled ahead of time. Only this package imports `triton`."""
