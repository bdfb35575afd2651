"""How micro-kernels read weight formats: a module `read_NAME` for each format that products of this backend take."""
