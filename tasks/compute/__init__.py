"""How work is spread: Ray Data, prefetching, batch inference."""
