"""Read Hugging Face and GGUF models and trace them into a captured IR graph."""
