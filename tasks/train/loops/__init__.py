"""The training loops, a module each."""
