"""The command line `retrain`: a module for each group of commands."""
