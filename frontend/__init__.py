"""Read Hugging Face, GGUF and ONNX models and trace them into a captured IR graph."""
