"""Chooses the images that are worth a label."""
