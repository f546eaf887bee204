"""What the processes of the tests import once, before they fork."""

LIBRARIES = (
    "dvc.repo",
    "great_expectations",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.pyfunc",
    "mlflow.server",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "pandas",
    "prefect.main",
    "torch",
    "torch.distributed.fsdp",
    "transformers.models.vit.modeling_vit",
)

# Prefect reads its settings from the environment when it is imported, and enters its metrics in
# `prometheus_client`: a fork imports both again, and finds what they import. Ray reads its settings
# then, too, and cannot be imported twice.
FORGOTTEN = ("prefect", "prometheus_client")
