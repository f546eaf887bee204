"""Training functions of users, good and bad, for `test_function.py`."""

import tempfile
import time
from pathlib import Path

import ray.train
import torch
from accelerate import Accelerator

from examples import ported, with_accelerate


class Unexpected:
    """What the factory below returns."""


def no_module(num_classes):
    return Unexpected()


def with_an_idle_parameter(num_classes):
    network = ported.build_model(num_classes, channels=1)
    network.idle = torch.nn.Parameter(torch.ones(3))
    return network


def report(metrics, weights=None):
    """Reports metrics, and weights if there are some."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if weights is not None:
            torch.save(weights, Path(folder, "weights.pth"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def weights_of(config):
    return ported.build_model(len(config["classes"]), channels=1).state_dict()


def never_reports(config):
    pass


def reports_nan(config):
    report({"val_accuracy": 0.5}, weights_of(config))
    report({"val_accuracy": 0.5, "loss": float("nan")}, weights_of(config))


def reports_no_checkpoint(config):
    report({"val_accuracy": 0.5})


def reports_another_metric(config):
    report({"accuracy": torch.tensor(0.5)}, weights_of(config))


def reports_another_network(config):
    report({"val_accuracy": 0.5}, torch.nn.Linear(2, 2).state_dict())


def raises(config):
    return config["learning_rate"]


def reports_three(config):
    """The second is the best; the third has no checkpoint. It returns what cannot be pickled."""
    for number, accuracy in enumerate((0.5, 0.9, 0.95)):
        weights = {
            name: torch.full_like(value, number) for name, value in weights_of(config).items()
        }
        report({"val_accuracy": accuracy}, {"network": weights} if number < 2 else None)
    return lambda: None


def begins_again(config):
    """It does not resume, and is lost in its fourth report, once."""
    lost = Path(config["lost"])
    for number, accuracy in enumerate((0.9, 0.5, 0.6, 0.7)):
        if number == 3 and not lost.exists():
            lost.touch()
            raise RuntimeError("the connection was lost")
        weights = weights_of(config)
        report(
            {"val_accuracy": accuracy},
            {name: torch.full_like(value, number) for name, value in weights.items()},
        )


def stops_once(config):
    """As the ported one, but it is lost in its third report, once."""
    lost = Path(config["lost"])
    real, reported = ray.train.report, []

    def losing(metrics, checkpoint=None):
        if len(reported) == 2 and not lost.exists():
            lost.touch()
            raise RuntimeError("the connection was lost")
        reported.append(metrics)
        real(metrics, checkpoint=checkpoint)

    ray.train.report = losing
    try:
        ported.train(config)
    finally:
        ray.train.report = real
        with lost.with_name("reported").open("a", encoding="utf-8") as file:
            file.write(f"{len(reported)} ")


def hangs_on_one_worker(config):
    """The others wait for it."""
    if ray.train.get_context().get_world_rank():
        time.sleep(600)
    elif config["where"] == "report":
        report({"val_accuracy": 0.5}, weights_of(config))
    else:
        torch.distributed.all_reduce(torch.zeros(1))


def trains_with_accelerate(config):
    assert Accelerator().num_processes == config["processes"]
    with_accelerate.train(config)
