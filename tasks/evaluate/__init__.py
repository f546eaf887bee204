"""The step `evaluate`, and the scores of registered models."""
