"""Weight formats, one per module."""
