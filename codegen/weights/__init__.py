"""Packed weights."""
