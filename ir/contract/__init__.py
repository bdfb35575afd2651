"""What compiler and runtime must agree on."""
