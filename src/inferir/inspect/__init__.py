"""What is in an artifact, for people."""
