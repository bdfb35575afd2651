"""Passes that group ops into kernel regions."""
