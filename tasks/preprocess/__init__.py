"""The step `preprocess`, which decodes and resizes the images."""
