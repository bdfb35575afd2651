"""What belongs to the TVM backend."""
