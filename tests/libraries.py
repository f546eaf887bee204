"""What the processes of the tests import once, before they fork."""

import logging
import sys

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


def forget() -> None:
    """Lets a fork import them again; until then, no logger has handlers of theirs."""
    for name in [name for name in sys.modules if _is_forgotten(name)]:
        del sys.modules[name]
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            for handler in list(logger.handlers):
                if _is_forgotten(type(handler).__module__):
                    logger.removeHandler(handler)
                    logger.propagate = True


def _is_forgotten(module: str) -> bool:
    return module.partition(".")[0] in FORGOTTEN
