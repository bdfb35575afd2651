"""GGUF files read by their own rules: format, keys, rope, tensors, tokenizers."""
