"""Finds trainings whose numbers are no longer finite, which another try would not mend."""

from retrain.workload import Train

# A check waits until the GPU has done all earlier work.
STEPS_BETWEEN_CHECKS = 50


def diverged(epoch: int, hyperparameters: Train) -> ValueError:
    """The error about a training that diverged.

    Args:
        epoch: In which epoch, or before which evaluation, from 1.
        hyperparameters: How it was trained.
    """
    return ValueError(
        f"The training diverged in epoch {epoch}: its numbers are no longer finite. Lower train.lr "
        f"(it is {hyperparameters.lr:g}) or raise train.warmup."
    )
