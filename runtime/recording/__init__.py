"""Records of the steps that an engine runs, and the traces that are written of them."""
