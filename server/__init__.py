"""OpenAI-compatible HTTP server and its metrics."""
