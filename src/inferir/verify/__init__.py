"""Comparing an artifact with eager."""
