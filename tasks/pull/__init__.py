"""The step `pull` and the sources of data."""
