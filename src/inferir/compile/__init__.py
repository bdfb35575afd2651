"""Model in, artifact out."""
