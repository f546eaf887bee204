"""Classifies images with a registered version of a model, in batches."""
