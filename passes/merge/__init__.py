"""Passes that join products of one input."""
