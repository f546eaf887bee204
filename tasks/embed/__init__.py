"""The step `embed`."""
