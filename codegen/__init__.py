"""Kernel generation for each region, bucket and target, with the persistent compile cache."""
