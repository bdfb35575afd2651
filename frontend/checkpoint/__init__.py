"""Model folders and checkpoints: which files count, what they say, and their tensors."""
