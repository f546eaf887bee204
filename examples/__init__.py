"""Training functions as people bring them; `docs/port-your-loop.md` explains them."""
