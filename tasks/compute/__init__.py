"""Distributes work: Ray Data, prefetching, batch inference."""
