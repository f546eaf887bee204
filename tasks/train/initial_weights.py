"""Finds the weights that a training starts from."""

from retrain.project import Project
from retrain.registry import versions
from retrain.runs.run import current_run
from retrain.step import Input, json_digest, plan
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.data.champion import RegisteredVersion
from tasks.train.step import train


def as_input(registered: RegisteredVersion | None) -> Input:
    """The weights of a registered version as an input of the step `train`; new ones if None."""
    return Input("start", json_digest(registered and registered.version.weights), registered)


NEW = as_input(None)


def find_initial_weights(
    workload: Workload, project: Project, images: Artifact, pulled: Artifact
) -> Input:
    """Finds what a training starts from.

    A champion that was itself trained in this way, on these images with these parameters, is not
    trained further: the training starts where the champion's did, and so is the champion's.

    Args:
        workload: The workload of the run.
        project: The clone with the registry.
        images: The images or embeddings that it trains on.
        pulled: The output of `pull`.
    """
    if workload.train.init == "new":
        return NEW
    champion = versions.champion(project, workload.name)
    if champion is None:
        return NEW
    before = None
    if champion.start:
        before = versions.find_by_weights(project, workload.name, champion.start)
        if before is None:
            current_run().warn(
                f"The weights {champion.start[:8]} are not found any more, from which the training "
                f"of {champion.title} started: that version, or its record, is gone. So nobody "
                "knows whether the champion came from this training, which starts from it."
            )
    if before or not champion.start:
        start = as_input(RegisteredVersion(project, before) if before else None)
        if plan(train, workload, [images, pulled, start]).key == champion.train_key:
            return start
    return as_input(RegisteredVersion(project, champion))
