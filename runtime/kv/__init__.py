"""The paged KV cache: blocks, who holds them, and how much memory they take."""
