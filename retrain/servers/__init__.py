"""The servers that runs use: Prefect, MLflow and Ray, shared or for a single run."""
