"""The step `train`, its loops and their parts."""
