"""Measuring tiles."""
