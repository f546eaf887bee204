"""Takes corrected labels over into the data."""
