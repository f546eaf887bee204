"""Compares incoming images with the data that a model was evaluated on."""
