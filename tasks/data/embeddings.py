"""Says which workloads train on embeddings of their images, and so need the step `embed`."""

from retrain.workload import Workload

FAMILY = "embedding_head"
STEP = "embed"


def has_embeddings(workload: Workload) -> bool:
    """Whether the workload's network is a head on embeddings."""
    return workload.model.family == FAMILY


def prepared_by(workload: Workload) -> str:
    """The name of the step whose output training and evaluation take."""
    return STEP if has_embeddings(workload) else "preprocess"
