"""The step `gate` and its rules."""
