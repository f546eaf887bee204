"""The step `promote` and the package that is served."""
