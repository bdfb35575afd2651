"""Lowerings of regions, one file per anchor."""
