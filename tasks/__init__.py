"""One room per step of the training flow, named by its verb."""
