"""What every backend asks of a region's body."""
