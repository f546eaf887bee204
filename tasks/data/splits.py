"""The splits of the data, in the order in which they are told."""

SPLITS = ("train", "val", "test")
