"""Module text to shared objects."""
