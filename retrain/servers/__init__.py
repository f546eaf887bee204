"""The servers that runs use: Prefect, MLflow and Ray, for all runs or for one."""
