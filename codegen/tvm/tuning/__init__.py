"""Tiles of matrix products, and candidates for tuning."""
