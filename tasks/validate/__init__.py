"""The step `validate`: the scan of the images, the image database, the suite."""
