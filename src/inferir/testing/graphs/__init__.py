"""IR text of captured graphs of small models; see `inferir.testing.model_graphs`."""
