"""Types, graphs, their text form, verifier, rewrites and reference interpreter."""
