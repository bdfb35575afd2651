"""A model as its user names it: a folder, a GGUF file or a hub id; its tokenizer, and what decides its facts."""
