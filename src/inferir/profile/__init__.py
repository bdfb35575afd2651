"""`inferir profile`: where the time of steps goes, and how far kernels are from what the machine can do."""
