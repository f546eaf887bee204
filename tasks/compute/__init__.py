"""Distributes work: Ray Data, batch inference."""
