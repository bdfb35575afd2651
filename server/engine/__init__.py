"""The engine's own process, and the link to it."""
