"""What several steps read: the raw images, splits, the image table, the shards."""
