"""The step's inputs."""
