"""Passes that insert what serving needs: caches, ragged tokens, wanted rows, sampling."""
