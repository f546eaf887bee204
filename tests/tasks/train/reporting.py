"""A helper of the functions in `functions.py`, which reports for them."""

from ray.train import Checkpoint, report


def report_again(metrics: dict[str, float], checkpoint: Checkpoint) -> None:
    report(metrics, checkpoint=checkpoint)
