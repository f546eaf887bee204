"""`retrain`: the project's command line, a module for each group of commands."""
