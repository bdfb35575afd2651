"""The persistent compile cache."""
