"""How work is distributed: Ray Data, prefetching, batch inference."""
