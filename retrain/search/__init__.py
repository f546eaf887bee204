"""The search for better parameters: the values to try, the trials, and what is told of them."""
