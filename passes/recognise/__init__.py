"""Passes that find composite ops in chains of simple ones."""
