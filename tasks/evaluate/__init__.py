"""The step `evaluate`, its metrics and its plots."""
