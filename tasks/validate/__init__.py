"""The step `validate`: the scan of the images, their splits, the judgement."""
