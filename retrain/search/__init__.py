"""The search for better parameters: the values to try, its study in Optuna, and its report."""
