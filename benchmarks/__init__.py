"""Benchmarks: what the project does, measured beside what one would write instead."""
