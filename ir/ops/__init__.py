"""Op definitions, one file per dialect."""
