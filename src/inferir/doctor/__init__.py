"""A self-test in layers: machine, toolchain, cache, a tiny model compiled, compared and served, and an artifact."""
