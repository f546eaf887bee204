"""The order of the steps, as Prefect flows."""
