"""The step `preprocess`."""
