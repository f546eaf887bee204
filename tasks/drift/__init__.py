"""Compares what comes in with the data that a model was evaluated on."""
