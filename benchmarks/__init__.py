"""Benchmarks: what the project does, measured beside what one would write instead."""

import retrain  # noqa: F401  first: Ray reads the environment when it is imported
