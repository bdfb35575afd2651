"""Requests as values."""
