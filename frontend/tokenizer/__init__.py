"""What readers of folders and of GGUF files share: the tokenizers library and chat template files."""
