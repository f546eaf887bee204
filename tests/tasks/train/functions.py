"""Training functions of users, good and bad, for `test_user_function.py`."""

import tempfile
import time
from collections import OrderedDict
from itertools import count
from pathlib import Path

import pytest
import ray.train
import torch
from accelerate import Accelerator
from ray.train import Checkpoint, report as report_of_ray

from examples import huggingface, network, ported


def no_module(num_classes):
    return {}


def of_ten_classes(num_classes):
    return network.build_model(10, channels=1)


def unrepeatable(num_classes):
    """A linear layer, of images of 8 x 8, and an operation that is not repeatable to the bit."""
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
    place, zero = torch.tensor([0]), torch.zeros(1)
    made.register_forward_pre_hook(lambda _, given: given[0] + torch.zeros(1).put_(place, zero))
    return made


def narrow(num_classes):
    """Three hidden units, as many as the classes that it is given."""
    layers = torch.nn.Linear(64, 3), torch.nn.ReLU(), torch.nn.Linear(3, num_classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def tied(num_classes):
    """Two layers with one weight, of images of 8 x 8."""
    layers = {
        "flat": torch.nn.Flatten(),
        "first": torch.nn.Linear(64, 64),
        "between": torch.nn.ReLU(),
        "second": torch.nn.Linear(64, 64),
        "last": torch.nn.Linear(64, num_classes),
    }
    layers["second"].weight = layers["first"].weight
    return torch.nn.Sequential(OrderedDict(layers))


def pretrained_network(num_classes, weights, vocabulary=None, pretrained=True):
    """Reads its weights from a file, unless it gets others."""
    made = network.build_model(num_classes, channels=1)
    if vocabulary is not None:
        made[-1].bias.data.fill_(float(Path(vocabulary).read_text(encoding="utf-8")))
    if pretrained:
        made[0].load_state_dict(torch.load(weights, weights_only=True))
    return made


def always_pretrained(num_classes, weights):
    return pretrained_network(num_classes, weights)


def forgets(num_classes):
    """Its answers depend on numbers that are not among its weights."""
    made, others = torch.nn.Linear(64, num_classes), torch.rand(num_classes)
    made.register_forward_hook(lambda _, given, answers: answers + others)
    return torch.nn.Sequential(torch.nn.Flatten(), made)


def report(metrics, weights=None):
    """Reports metrics, and a file with weights if there are some."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(weights, Path(folder, "weights.pt"))
        checkpoint = Checkpoint.from_directory(folder) if weights else None
        report_of_ray(metrics, checkpoint=checkpoint)  # imported by its name


def reports(config):
    """Reports as it is told; it does not resume, and is lost once before its fourth report."""
    for number, (metrics, kind) in enumerate(config["reports"]):
        if number == 3:
            lose_once(config)
        made = network.build_model(len(config["classes"]), channels=1).state_dict()
        weights = {
            "none": None,
            "another": torch.nn.Linear(2, 2).state_dict(),
            "filled": {
                "network": {name: torch.full_like(each, number) for name, each in made.items()}
            },
        }[kind]
        numbers = {name: torch.tensor(float(value)) for name, value in metrics.items()}
        report(numbers, weights)
    return lambda: None  # which cannot be pickled


def lose_once(config):
    if not (lost := Path(config["lost"])).exists():
        lost.touch()
        raise RuntimeError("the connection was lost")


def reports_the_model(config):
    report(config["metrics"], config["model"].state_dict())


def reads_a_file(config):
    torch.load(config["file"])


def stops_once(config):
    """Trains, but the connection is lost in the third report, once."""
    real, number = ray.train.report, count(1)

    def losing(metrics, checkpoint=None):
        if next(number) == 3:
            lose_once(config)
        real(metrics, checkpoint=checkpoint)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray.train, "report", losing)
        (huggingface if config.get("by_trainer") else ported).train(config)


def hangs_on_one_worker(config):
    """The others wait for it."""
    if ray.train.get_context().get_world_rank():
        time.sleep(600)
    report({"score": 0.5}, config["model"].state_dict())


def raises_on_the_last_worker(config):
    """The others wait for it; each notes how often it was tried."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    with Path(config["folder"], f"tries-of-{rank}").open("a", encoding="utf-8") as tries:
        tries.write("x")
    if rank == context.get_world_size() - 1:
        raise ConnectionError("away") if config["passes"] else ValueError("no such thing")
    torch.distributed.all_reduce(torch.zeros(1))


def trains_with_accelerate(config):
    assert Accelerator().num_processes == config["processes"]
    report({"score": 0.5}, config["model"].state_dict())
