"""Says which workloads train on embeddings of their images, and so need the step `embed`."""

from retrain.workload import Workload


def has_embeddings(workload: Workload) -> bool:
    """Whether the workload's network is a head on embeddings."""
    return workload.model.family == "embedding_head"


def prepared_by(workload: Workload) -> str:
    """The name of the step whose output training and evaluation take."""
    return "embed" if has_embeddings(workload) else "preprocess"
