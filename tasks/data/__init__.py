"""Reads what several steps need: the raw images, the image table, the shards, predictions."""
