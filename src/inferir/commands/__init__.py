"""The commands of `inferir`, one module each. None imports more than typer before its command runs."""
