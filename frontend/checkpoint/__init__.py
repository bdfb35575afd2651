"""Files of model folders, and the tensors of checkpoints."""
