"""Sampling parameters and what follows from them."""
