"""Graph passes: from a captured graph to kernel regions with a planned step program."""
