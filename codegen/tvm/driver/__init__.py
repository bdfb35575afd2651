"""The step driver of a bucket's library."""
