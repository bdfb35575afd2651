"""Passes that bring captured graphs into one form."""
