"""Scheduling and running steps."""
