"""The step `slice`: how good a model is on parts of the test split."""
