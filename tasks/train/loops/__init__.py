"""The training loops, one module each."""
