"""Plug-ins for Inferir. What a compiler imports and what a server imports are modules of their own."""
