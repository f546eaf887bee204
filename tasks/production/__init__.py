"""Measures a model in production: what it answered, and the labels that came later."""
